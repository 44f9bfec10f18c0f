"""Spellings of a path that routers forgive, against each framework's own router: none of them runs without the key that
a rule requires, and none of them is exempt where its plain spelling is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgi_calls import Wire
from django.http import HttpResponse
from django.test import override_settings
from django.urls import re_path
from django.views.decorators.csrf import csrf_exempt
from fastapi import FastAPI
from flask import Flask
from litestar import Litestar
from litestar import post as litestar_post
from quart import Quart
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from wsgi_calls import Served, call, text

import django_site  # noqa: F401
from django_site.calling import ByAsgi, ByWsgi
from semel import Policy
from semel.asgi import IdempotencyMiddleware, Rule
from semel.asgi.types import Message
from semel.flask import Idempotency
from semel.litestar import IdempotencyPlugin
from semel.quart import protect

SPELLINGS = (
    "/payments", "/payments/", "/payments//", "//payments", "//payments/", "///payments", "/Payments", "/PAYMENTS/",
    "/./payments", "/a/../payments", "/webhooks/../payments", "/webhooks/..;/payments", "/webhooks//../payments",
    "/payments;a=b", "/payments.json", "/payments\n", "/payments ", "\\payments", "/webhooks\\..\\payments",
    "/payments/.",
)  # fmt: skip
RULES = [Rule("/webhooks/", None), Rule("POST /payments", Policy(required=True))]
OPTIONS: dict[str, Any] = {"identify": lambda caller: "me", "rules": RULES}
Ask = Callable[[str, "str | None"], int]
"""Sends POST to a path, with a key or without, and says how many effects there have been."""


class ServedWire(Wire):
    """Tells the application that the request is over when it was answered, as servers do. Quart waits for that."""

    async def send(self, message: Message) -> None:
        await super().send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.gone.set()


def ask_asgi(app: Any, effects: list[str]) -> Ask:
    def ask(path: str, key: str | None) -> int:
        wire = ServedWire(path=path, key=key, headers=[("host", "x"), ("content-length", "2")])
        wire.scope |= {"http_version": "1.1", "scheme": "http", "server": ("x", 80), "client": ("x", 1)}
        asyncio.run(asyncio.wait_for(app(wire.scope, wire.receive, wire.send), 20))
        return len(effects)

    return ask


def starlette(route: str) -> Ask:
    effects: list[str] = []

    async def pay(request: Request) -> PlainTextResponse:
        effects.append(request.url.path)
        return PlainTextResponse("paid")

    app = Starlette(routes=[Route(route, pay, methods=["POST"])])
    return ask_asgi(IdempotencyMiddleware(app, store="memory://", **OPTIONS), effects)


def fastapi(route: str) -> Ask:
    effects: list[str] = []
    app = FastAPI()

    @app.post(route)
    async def pay() -> str:
        effects.append("paid")
        return "paid"

    return ask_asgi(IdempotencyMiddleware(app, store="memory://", **OPTIONS), effects)


def any_asgi(route: str) -> Ask:
    """A router that forgives everything."""
    effects: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        effects.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return ask_asgi(IdempotencyMiddleware(app, store="memory://", **OPTIONS), effects)


def litestar(route: str) -> Ask:
    effects: list[str] = []

    @litestar_post(route)
    async def pay() -> None:
        effects.append("paid")

    return ask_asgi(Litestar([pay], plugins=[IdempotencyPlugin(store="memory://", **OPTIONS)]), effects)


def quart(route: str) -> Ask:
    effects: list[str] = []
    app = Quart(__name__)

    @app.post(route, strict_slashes=False)
    async def pay() -> str:
        effects.append("paid")
        return "paid"

    protect(app, store="memory://", **OPTIONS)
    return ask_asgi(app, effects)


def flask(route: str) -> Ask:
    effects: list[str] = []
    app = Flask(__name__)
    app.url_map.strict_slashes = False
    Idempotency(app, store="memory://", **OPTIONS)

    @app.post(route)
    def pay() -> str:
        effects.append("paid")
        return "paid"

    def ask(path: str, key: str | None) -> int:
        call(app, path, key=key, validate=False)
        return len(effects)

    return ask


def any_wsgi(route: str) -> Ask:
    served = Served(text(b"paid"), rules=RULES)

    def ask(path: str, key: str | None) -> int:
        served(path, key=key, validate=False)
        return served.work.effects

    return ask


def django(way: type[ByWsgi] | type[ByAsgi]) -> Callable[[str], Ask]:
    def build(route: str) -> Ask:
        effects: list[str] = []

        def pay(request: Any) -> HttpResponse:
            effects.append(request.path)
            return HttpResponse(b"paid")

        view = csrf_exempt(pay)
        urls = type("Urls", (), {"urlpatterns": [re_path(f"(?i)^/?{route.strip('/')}/*$", view)]})
        semel = {"store": "memory://", **OPTIONS}

        def ask(path: str, key: str | None) -> int:
            with override_settings(SEMEL=semel, ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"]):
                caller = way()
                named: dict[str, Any] = {} if key is None else {"idempotency_key": key}
                caller(path, **named)
                caller.close()
            return len(effects)

        return ask

    return build


FRONTS: dict[str, Callable[[str], Ask]] = {
    "starlette": starlette, "fastapi": fastapi, "asgi": any_asgi, "litestar": litestar, "quart": quart, "flask": flask,
    "wsgi": any_wsgi, "django-wsgi": django(ByWsgi), "django-asgi": django(ByAsgi),
}  # fmt: skip


@pytest.mark.parametrize("route", ["/payments", "/payments/"])
@pytest.mark.parametrize("front", FRONTS)
def test_no_spelling_runs_without_the_key_that_a_rule_requires(front: str, route: str) -> None:
    ask = FRONTS[front](route)
    ran = [path for path in SPELLINGS if ask(path, None)]
    assert ran == []
    assert ask(route, "k") == 1, "with a key it runs"
