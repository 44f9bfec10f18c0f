"""Stripe's own library against a stub that semel protects: its retries are safe. Effects are counted, one per call."""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import stripe

from client.protected import ProtectedShop, protecting
from semel import Policy
from semel.testing.proxy import Fault, FaultProxy, ProxyExchange
from waiting import until

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # the library's own

Charge = Callable[..., Any]
"""Charges by the library: `charge(url, amount=5)`."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library waits half a second before each repeat; here it does not."""
    monkeypatch.setattr(stripe.HTTPClient, "INITIAL_DELAY", 0.01)
    monkeypatch.setattr(stripe.HTTPClient, "MAX_DELAY", 0.02)


@pytest.fixture
def shop() -> Iterator[ProtectedShop]:
    with protecting(Policy.stripe()) as shop:
        yield shop


def by_requests(url: str, *, timeout: float = 10, retries: int = 6, key: str = "", **params: Any) -> Any:
    http = stripe.RequestsClient(timeout=timeout)
    client = stripe.StripeClient(
        "sk_test_1", base_addresses={"api": url}, max_network_retries=retries, http_client=http
    )
    return client.v1.charges.create(params=params, options={"idempotency_key": key} if key else {})  # type: ignore[arg-type]


def by_httpx(url: str, *, timeout: float = 10, retries: int = 6, key: str = "", **params: Any) -> Any:
    async def charged() -> Any:
        http = stripe.HTTPXClient(timeout=timeout)
        client = stripe.StripeClient(
            "sk_test_1", base_addresses={"api": url}, max_network_retries=retries, http_client=http
        )
        options: Any = {"idempotency_key": key} if key else {}
        return await client.v1.charges.create_async(params=params, options=options)  # type: ignore[arg-type]

    return asyncio.run(charged())


libraries = pytest.mark.parametrize("charge", [by_requests, by_httpx])


def charges(exchange: ProxyExchange) -> bool:
    """The body of a charge: with it the request is whole."""
    return b"amount=" in exchange.request


@libraries
@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
def test_a_connection_that_is_cut(charge: Charge, fault: Fault, shop: ProtectedShop) -> None:
    with FaultProxy(shop.url) as proxy:
        cut = proxy.inject(fault, when=charges, times=2)
        assert charge(proxy.url, amount=5).id == "ch_1"
        assert cut.hits == 2
    assert shop.effects == {b"amount=5": 1}


def test_without_semel_the_same_cut_charges_again() -> None:
    with protecting(Policy(methods=())) as shop, FaultProxy(shop.url) as proxy:
        proxy.inject(Fault.CUT_AFTER, when=charges)
        assert by_requests(proxy.url, amount=5).id == "ch_2"
        assert shop.effects == {b"amount=5": 2}


@libraries
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_proxy_that_loses_answers(charge: Charge, status: int, shop: ProtectedShop) -> None:
    shop.lost_answers += [status, status]
    assert charge(shop.url, amount=5).id == "ch_1"
    assert shop.lost_answers == []
    assert shop.effects == {b"amount=5": 1}


@libraries
def test_a_failure_after_the_effect_is_the_answer(charge: Charge, shop: ProtectedShop) -> None:
    for _ in range(2):
        with pytest.raises(stripe.APIError) as caught:
            charge(shop.url, key="order-1", amount=5, description="boom")
        assert caught.value.http_status == 500
    assert sum(shop.effects.values()) == 1


@libraries
def test_a_repeat_comes_while_the_first_request_runs(charge: Charge, shop: ProtectedShop) -> None:
    shop.may_answer.clear()
    with FaultProxy(shop.url) as proxy:
        held = proxy.inject(Fault.CUT_AFTER, when=lambda exchange: charges(exchange) and bool(shop.effects), times=3)
        with pytest.raises(stripe.APIConnectionError):
            charge(proxy.url, timeout=0.5, retries=0, key="order-1", amount=5, description="slow")
        until(lambda: shop.effects)
        with pytest.raises(stripe.APIError) as caught:
            charge(shop.url, retries=1, key="order-1", amount=5, description="slow")
        assert caught.value.http_status == 409
        assert caught.value.error is not None
        assert caught.value.error.code == "idempotency_key_in_use"
        shop.may_answer.set()
        assert charge(proxy.url, key="order-1", amount=5, description="slow").id == "ch_1"
        assert held.hits == 3
    assert sum(shop.effects.values()) == 1


@libraries
def test_errors_are_those_that_the_library_knows(charge: Charge, shop: ProtectedShop) -> None:
    for _ in range(2):
        with pytest.raises(stripe.CardError) as declined:
            charge(shop.url, key="order-1", amount=5, description="declined")
        assert declined.value.code == "card_declined"
    with pytest.raises(stripe.IdempotencyError, match="belongs to another request"):
        charge(shop.url, key="order-1", amount=6)
    with pytest.raises(stripe.InvalidRequestError) as malformed:
        charge(shop.url, key="k" * 256, amount=5)
    assert malformed.value.code == "key_malformed"
    assert not shop.effects


@pytest.mark.parametrize("seed", range(2))
def test_many_calls_on_a_bad_network_take_effect_once_each(seed: int, shop: ProtectedShop) -> None:
    troubles = random.Random(seed)
    with FaultProxy(shop.url) as proxy:
        ids = set()
        for amount in range(40):
            for _ in range(troubles.randrange(3)):
                match troubles.randrange(3):
                    case 0:
                        proxy.inject(Fault.CUT_AFTER, when=charges)
                    case 1:
                        proxy.inject(Fault.CUT_BEFORE, when=charges)
                    case _:
                        shop.lost_answers.append(troubles.choice([500, 502, 503]))
            ids.add(by_requests(proxy.url, amount=amount, retries=20).id)
    assert len(ids) == 40
    assert shop.effects == {f"amount={amount}".encode(): 1 for amount in range(40)}
