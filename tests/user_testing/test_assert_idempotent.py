"""`assert_idempotent` passes what is safe, with every client, and tells what is wrong with what is not."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from django.test import AsyncClient, Client, override_settings
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import django_site  # noqa: F401
from django_site import views
from semel import Fingerprint, Policy
from semel.asgi import IdempotencyMiddleware
from semel.testing import aassert_idempotent, assert_idempotent
from user_testing.services import CheckRunSave, KeyIgnored, Shop, Stamped, protected

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # which of two HTTP clients it stands on
    from starlette.testclient import TestClient

ANN, BOB = {"Authorization": "Bearer ann"}, {"Authorization": "Bearer bob"}
ORDER = {"item": "book", "count": 1}
DJANGO = {"store": "memory://", "identify": lambda request: request.headers.get("Authorization")}


def fails(app: Flask, *patterns: str, **request: Any) -> None:
    given: dict[str, Any] = {"json": ORDER, "headers": ANN} | request
    with pytest.raises(AssertionError) as failed:
        assert_idempotent(app.test_client(), "POST", "/orders", **given)
    for pattern in patterns:
        assert pattern in str(failed.value)


def starlette_app(shop: Shop) -> Starlette:
    async def orders(request: Request) -> JSONResponse:
        await asyncio.sleep(0)
        return JSONResponse({"order": shop.order()}, status_code=201)

    app = Starlette(routes=[Route("/orders", orders, methods=["POST"])])
    identify = lambda scope: dict(scope["headers"]).get(b"authorization", b"").decode()  # noqa: E731
    app.add_middleware(IdempotencyMiddleware, store="memory://", identify=identify)
    return app


@contextmanager
def client_of(kind: str) -> Iterator[tuple[Any, str, Any]]:
    """A client, the path to ask it for, and how many effects there were."""
    shop = Shop()
    if kind == "flask":
        yield protected(shop.app()).test_client(), "/orders", shop.effects
    elif kind == "httpx":
        transport = httpx.WSGITransport(protected(shop.app()))
        with httpx.Client(transport=transport, base_url="http://shop") as client:
            yield client, "/orders", shop.effects
    elif kind == "starlette":
        with TestClient(starlette_app(shop)) as client:
            yield client, "/orders", shop.effects
    else:
        with override_settings(SEMEL=DJANGO):
            yield Client(), "/sync/ok", lambda: len(views.effects)


@pytest.mark.parametrize("kind", ["httpx", "starlette", "flask", "django"])
def test_a_protected_service_passes_with_every_client(kind: str) -> None:
    with client_of(kind) as (client, path, effects):
        before = effects()
        assert_idempotent(client, "POST", path, json=ORDER, headers=ANN, effects=effects, other_identity=BOB)
        assert effects() - before == 3, "one for the first key, one for those at once, one for another caller"


def test_a_protected_service_passes_with_httpx_s_async_client() -> None:
    shop = Shop()

    async def count() -> int:
        return shop.effects()

    async def ask() -> None:
        transport = httpx.ASGITransport(starlette_app(shop))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            await aassert_idempotent(
                client, "POST", "/orders", json=ORDER, headers=ANN, effects=count, other_identity=BOB
            )

    asyncio.run(ask())
    assert shop.orders == 3


def test_a_protected_service_passes_with_django_s_async_client() -> None:
    async def ask() -> None:
        await aassert_idempotent(
            AsyncClient(), "POST", "/async/ok", json=ORDER, headers=ANN, effects=lambda: len(views.effects)
        )

    with override_settings(SEMEL=DJANGO):
        asyncio.run(ask())


def test_waiting_callers_and_strict_keys_pass() -> None:
    shop = Shop()
    policy = Policy(in_flight="wait", key_format="strict", required=True)
    numbers = iter(range(9))
    assert_idempotent(
        protected(shop.app(), policy).test_client(),
        *("POST", "/orders"),
        content=b"<order/>",
        headers=ANN | {"Content-Type": "application/xml"},
        effects=shop.effects,
        new_key=lambda: f'"order {next(numbers)}"',
    )
    assert shop.orders == 2


def test_no_protection_is_seen_by_its_effects() -> None:
    shop = Shop()
    fails(
        shop.app(),
        "a repeat under the same Idempotency-Key took effect again (1 more)",
        "Put the idempotency middleware in front of this endpoint",
        'first:  201 {"order":1}',
        effects=shop.effects,
    )


def test_no_protection_is_seen_by_its_answers() -> None:
    fails(Shop().app(), "got another answer", "byte for byte", 'repeat: 201 {"order":2}')


def test_a_method_that_is_not_protected() -> None:
    fails(protected(Shop().app(), Policy(methods=["PATCH"])), "got another answer")


@pytest.mark.parametrize("counted", [True, False])
def test_check_run_save_without_a_claim(counted: bool) -> None:
    shop = Shop()
    app = shop.app()
    app.wsgi_app = CheckRunSave(app.wsgi_app)  # type: ignore[method-assign]
    app.wsgi_app = RefusesChange(app.wsgi_app)  # type: ignore[method-assign]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nobody counts: it is seen by the answers all the same
        fails(
            app,
            "8 requests at once under one Idempotency-Key",
            "nothing claims the key before",
            effects=shop.effects if counted else None,
        )
    assert shop.orders > 2


class RefusesChange:
    """Another body is refused, so that only what happens at once is wrong."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if environ["CONTENT_LENGTH"] != "28":
            start_response("422 Unprocessable Content", [])
            return [b""]
        return self._app(environ, start_response)


def test_a_replay_across_tenants() -> None:
    shop = Shop()
    app = protected(shop.app(), identify=lambda environ: "everybody")
    fails(
        app,
        "another caller got the first caller's answer",
        "tell them apart by account (identify=)",
        effects=shop.effects,
        other_identity=BOB,
    )


def test_a_key_that_blocks_another_tenant() -> None:
    policy = Policy(fingerprint=Fingerprint(headers=("authorization",)))
    app = protected(Shop().app(), policy, identify=lambda environ: "everybody")
    fails(app, "another caller was refused because of the first caller's Idempotency-Key", other_identity=BOB)


def test_somebody_who_is_not_let_in_is_fine() -> None:
    client = protected(Shop().app()).test_client()
    nobody = {"Authorization": "Bearer nobody"}
    assert_idempotent(client, "POST", "/orders", json=ORDER, headers=ANN, other_identity=nobody)


def test_a_body_that_is_ignored() -> None:
    app = protected(Shop().app(), Policy(fingerprint=lambda request: b"always the same"))
    fails(app, "another body under the same Idempotency-Key was not refused", "Policy.fingerprint")


def test_a_key_that_is_ignored() -> None:
    shop = Shop()
    app = shop.app()
    app.wsgi_app = KeyIgnored(app.wsgi_app)  # type: ignore[method-assign]
    fails(app, "a request under a new Idempotency-Key took no effect", effects=shop.effects)


def test_an_answer_that_is_changed_on_its_way() -> None:
    app = protected(Shop().app())
    app.wsgi_app = Stamped(app.wsgi_app)  # type: ignore[method-assign]
    fails(app, "got another answer", "something in front of the middleware changes it")


def test_a_request_that_does_not_succeed_says_nothing() -> None:
    nobody = {"Authorization": "Bearer nobody"}
    fails(Shop().app(), "was answered 401", "give a request that succeeds", headers=nobody)


def test_a_counter_that_sees_nothing() -> None:
    fails(protected(Shop().app()), "effects= did not change", effects=lambda: 0)


def test_equal_answers_that_nobody_counts_are_warned_of() -> None:
    app = Flask("constant")
    app.post("/orders")(lambda: ("thanks", 201))
    app.wsgi_app = RefusesChange(app.wsgi_app)  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="pass effects="):
        assert_idempotent(app.test_client(), "POST", "/orders", json=ORDER, headers=ANN)


def test_the_wrong_client_is_told_which_function_to_use() -> None:
    with pytest.raises(TypeError, match="await aassert_idempotent"):
        assert_idempotent(httpx.AsyncClient(), "POST", "/orders")
    with pytest.raises(TypeError, match="without await"):
        asyncio.run(aassert_idempotent(httpx.Client(), "POST", "/orders"))
    with pytest.raises(TypeError, match="no way to send a request with a Shop"):
        assert_idempotent(Shop(), "POST", "/orders")
    with pytest.raises(TypeError, match="not both"):
        assert_idempotent(httpx.Client(), "POST", "/orders", json=ORDER, content=b"x")


@pytest.mark.parametrize("json", [{"a": {"b": [1]}}, {"a": True}, {"a": None}, ["x"], {}, [], 5, "text", 1.5])
def test_any_json_is_changed_into_another_one(json: object) -> None:
    app = protected(Shop().app(), Policy(fingerprint="json"))
    assert_idempotent(app.test_client(), "POST", "/orders", json=json, headers=ANN, parallel=0)
