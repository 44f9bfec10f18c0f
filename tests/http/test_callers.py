"""An `identify` that looks for a caller whom no middleware has found yet: the error says how to order them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from asgi_calls import Wire, Work
from django.test import override_settings
from fastapi import FastAPI, Request
from flask import Flask
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from wsgi_calls import Work as WsgiWork
from wsgi_calls import call

import django_site  # noqa: F401
from django_site.calling import ByAsgi, ByWsgi
from django_site.views import effects
from semel import asgi, wsgi
from semel.errors import Misuse
from semel.fastapi import protect
from semel.flask import Idempotency

KEYED = {"Idempotency-Key": "k"}


class Everybody(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
        return AuthCredentials(), SimpleUser("ann")


def shop(identify: Callable[..., Any], *, auth_first: bool) -> tuple[FastAPI, list[str]]:
    """With authentication inside of semel when it is added first, outside when it is added last."""
    app, paid = FastAPI(), list[str]()

    @app.post("/pay")
    def pay(request: Request) -> str:
        paid.append(request.user.username)
        return "paid"

    if auth_first:
        app.add_middleware(AuthenticationMiddleware, backend=Everybody())
    protect(app, store="memory://", identify=identify)
    if not auth_first:
        app.add_middleware(AuthenticationMiddleware, backend=Everybody())
    return app, paid


def post(app: Any, headers: dict[str, str] | None = None, *, raise_app_exceptions: bool = True) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=raise_app_exceptions)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.post("/pay", headers=headers)

    return asyncio.run(asked())


async def by_coroutine(scope: Any) -> str:
    return str(scope["user"].username)


@pytest.mark.parametrize(
    ("identify", "missing"),
    [
        (lambda scope: scope["user"].username, "asked for 'user', which the scope does not have"),
        (by_coroutine, "asked for 'user', which the scope does not have"),
        (lambda scope: scope.get("user").username, "asked None for .username, and the scope shows no user"),
        (lambda scope: HTTPConnection(scope).user.username, "failed: AuthenticationMiddleware must be installed"),
        (lambda scope: HTTPConnection(scope).session["who"], "failed: SessionMiddleware must be installed"),
    ],
)
def test_authentication_inside_of_semel_is_named_as_the_mistake(identify: Callable[..., Any], missing: str) -> None:
    app, paid = shop(identify, auth_first=True)
    with pytest.raises(Misuse, match=f"identify= {missing}") as caught:
        post(app, KEYED)
    assert "call add_middleware (or protect) for semel above add_middleware for authentication" in str(caught.value)
    assert caught.value.__cause__ is not None, "what identify raised is shown, too"
    assert post(app, KEYED, raise_app_exceptions=False).status_code == 500
    assert paid == [], "without a caller nothing runs"
    assert post(app).status_code == 200, "requests without a key go their way"


def test_in_the_other_order_the_caller_is_known() -> None:
    app, paid = shop(lambda scope: scope["user"].username, auth_first=False)
    assert post(app, KEYED).json() == "paid"
    assert post(app, KEYED).headers["idempotent-replayed"] == "true"
    assert paid == ["ann"]


class Unrelated(Exception):
    """What an `identify` may raise by itself, for example an answer of its framework's."""


@pytest.mark.parametrize(
    "error",
    [Unrelated("x"), KeyError(7), AttributeError("a text alone"), AssertionError("never"), OSError()],
)
def test_other_errors_of_identify_go_on_as_they_are(error: Exception) -> None:
    def identify(scope: Any) -> str:
        raise error

    front = asgi.IdempotencyMiddleware(work := Work(), store="memory://", identify=identify)
    wire = Wire()
    with pytest.raises(type(error)) as caught:
        asyncio.run(front(wire.scope, wire.receive, wire.send))
    assert caught.value is error
    assert work.effects == 0

    counted = WsgiWork()
    with pytest.raises(type(error)) as caught:
        call(wsgi.IdempotencyMiddleware(counted, store="memory://", identify=identify), validate=False)
    assert caught.value is error
    assert counted.effects == 0


def test_an_attribute_of_none_is_not_about_the_user_where_there_is_one() -> None:
    front = asgi.IdempotencyMiddleware(Work(), store="memory://", identify=lambda scope: scope["none"].name)
    wire = Wire()
    wire.scope |= {"user": SimpleUser("ann"), "none": None}
    with pytest.raises(AttributeError):
        asyncio.run(front(wire.scope, wire.receive, wire.send))


@pytest.mark.parametrize(
    ("identify", "missing"),
    [
        (lambda environ: environ["REMOTE_USER"], "asked for 'REMOTE_USER', which the environ does not have"),
        (lambda environ: environ.get("REMOTE_USER").lower(), "asked None for .lower, and the environ shows no user"),
    ],
)
def test_wsgi_says_what_to_wrap_first(identify: Callable[..., Any], missing: str) -> None:
    work = WsgiWork()
    with pytest.raises(Misuse, match=missing) as caught:
        call(wsgi.IdempotencyMiddleware(work, store="memory://", identify=identify), validate=False)
    assert "Authentication(IdempotencyMiddleware(app, …))" in str(caught.value)
    assert work.effects == 0


def test_flask_says_to_open_the_session() -> None:
    app = Flask("shop")
    Idempotency(app, store="memory://", identify=lambda environ: environ["beaker.session"]["user"])
    app.testing = True
    with pytest.raises(Misuse, match=r"with app\.request_context"):
        app.test_client().post("/pay", headers=KEYED)


@pytest.mark.parametrize("served", [ByWsgi, ByAsgi])
@pytest.mark.parametrize(
    ("identify", "middleware", "missing"),
    [
        (lambda request: request.user.pk, [], "asked for .user, which the request does not have"),
        (
            lambda request: request.user.account,
            [
                "django.contrib.sessions.middleware.SessionMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware",
            ],
            "asked an AnonymousUser for .account",
        ),
    ],
)
def test_django_says_which_middleware_is_missing(
    served: Callable[..., Any],
    identify: Callable[..., Any],
    middleware: list[str],
    missing: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    semel = {"store": "memory://", "identify": identify}
    chain = [*middleware, "semel.django.IdempotencyMiddleware"]
    effects.clear()
    with override_settings(SEMEL=semel, MIDDLEWARE=chain), caplog.at_level(logging.ERROR, "django.request"):
        answer = served()("/count", idempotency_key="k")
    assert answer.status == 500
    assert not effects
    told = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert any(missing in each and "AuthenticationMiddleware" in each for each in told), told
