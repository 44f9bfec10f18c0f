"""The recipes of docs/recipes.md, in one module as a reader would type them. Effects are counted."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from starlette.testclient import TestClient

from client.api import serving
from docs_pages.reader import blocks_of

CHARGED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 33\r\n\r\n" + (
    b'{"id": "ch_1", "object":"charge"}'
)
KEYED = {"Idempotency-Key": "one"}


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page's module. Stripe is a server of the tests, which loses its first answers."""
    module: Any = ModuleType("recipes")
    with pytest.MonkeyPatch.context() as patch, serving(*["drop"] * 3, CHARGED) as stripe:
        stripe_client = __import__("stripe").HTTPClient
        patch.setattr(stripe_client, "INITIAL_DELAY", 0.01)
        patch.setattr(stripe_client, "MAX_DELAY", 0.02)
        patch.chdir(tmp_path_factory.mktemp("recipes"))
        patch.setitem(__import__("sys").modules, module.__name__, module)
        for block in blocks_of("docs/recipes.md"):
            here = block.body.replace("https://api.stripe.example", stripe.url.removesuffix("/pay"))
            exec(compile(here, "docs/recipes.md", "exec"), module.__dict__)
        module.at_stripe = stripe
        yield module


def test_a_charge_at_stripe_is_made_once(recipes: Any) -> None:
    with TestClient(recipes.app) as client:
        lost, first, again = (client.post("/orders/7/charge", headers=KEYED) for _ in range(3))
    assert (lost.status_code, first.status_code, first.json()) == (504, 201, {"charge": "ch_1"})
    assert again.json() == first.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert list(recipes.at_stripe.effects.values()) == [1]


def test_an_api_like_stripe_s(recipes: Any) -> None:
    with TestClient(recipes.api) as client:
        first, again = (client.post("/v1/charges", json={"amount": 5}, headers=KEYED) for _ in range(2))
        other = client.post("/v1/charges", json={"amount": 6}, headers=KEYED)
    assert first.json() == again.json()
    assert other.json()["error"]["type"] == "idempotency_error"


def test_a_webhook_ships_once(recipes: Any) -> None:
    with TestClient(recipes.hooks) as client:
        told = [client.post("/webhook", json={"id": "evt_1", "order": "7"}).json() for _ in range(3)]
    assert told == [{"done": "parcel for 7"}] * 3
    assert recipes.shipped == ["7"]


def test_customers_do_not_share_keys(recipes: Any) -> None:
    with TestClient(recipes.shop) as client:
        told = [
            client.post("/orders", headers=KEYED | {"Authorization": f"Bearer secret-of-{name}"}).json()
            for name in ("ann", "bob", "ann")
        ]
    assert told[0] == told[2]
    assert [each["of"] for each in told] == ["ann", "bob", "ann"]


def test_a_job_mails_once(recipes: Any) -> None:
    told = {recipes.job({"month": "2026-11", "customer": "ann"}) for _ in range(3)}
    assert told == {"invoice 2026-11 for ann"}
    assert recipes.mailed == ["ann"]
