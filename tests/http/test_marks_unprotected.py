"""A mark on an endpoint protects nothing by itself: without the middleware the log says so, once."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from django.test import override_settings
from fastapi import FastAPI
from flask import Flask
from flask.views import MethodView
from litestar import Litestar
from litestar import post as litestar_post
from pydantic import BaseModel
from quart import Quart
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import django_site  # noqa: F401
from django_site.calling import ByAsgi, ByWsgi
from semel import Policy, asgi, wsgi
from semel.asgi import idempotency_exempt, idempotent
from semel.fastapi import protect
from semel.flask import Idempotency
from semel.litestar import IdempotencyPlugin
from semel.quart import protect as protect_quart

OPTIONS: dict[str, Any] = {"store": "memory://", "identify": lambda request: "me"}
OPTIONAL = Policy()
Warned = Callable[[], list[str]]


class Payment(BaseModel):
    """Named in annotations that are texts: FastAPI looks it up in the globals of the endpoint."""

    amount: int = 1


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[Warned]:
    """The endpoints that were called unprotected."""
    with caplog.at_level(logging.WARNING, "semel"):
        yield lambda: [
            record.message.partition(" is marked")[0].rpartition(".")[2]
            for record in caplog.records
            if "runs unprotected" in record.message
        ]


class Front:
    """An application with a marked endpoint, an exempt one, and a class or method of its framework's."""

    def starlette(self) -> Any:
        @idempotent(OPTIONAL)
        async def pay(request: Request) -> PlainTextResponse:
            return PlainTextResponse("paid")

        @idempotent(OPTIONAL)
        def in_thread(request: Request) -> PlainTextResponse:
            return PlainTextResponse("paid")

        @idempotency_exempt
        async def free(request: Request) -> PlainTextResponse:
            return PlainTextResponse("free")

        @idempotent(OPTIONAL)
        class Payments(HTTPEndpoint):
            async def post(self, request: Request) -> PlainTextResponse:
                return PlainTextResponse("paid")

            get = post

        ways = {"/pay": pay, "/thread": in_thread, "/free": free}
        routes = [Route(path, endpoint, methods=["GET", "POST"]) for path, endpoint in ways.items()]
        return Starlette(routes=[*routes, Route("/class", Payments)])

    def fastapi(self) -> Any:
        app = FastAPI()

        @app.api_route("/pay", methods=["GET", "POST"])
        @idempotent(OPTIONAL)
        async def pay(payment: Payment | None = None) -> str:
            return f"paid {payment}"

        @app.api_route("/thread", methods=["GET", "POST"])
        @idempotent(OPTIONAL)
        def in_thread(payment: Payment | None = None) -> str:
            return f"paid {payment}"

        @app.api_route("/free", methods=["GET", "POST"])
        @idempotency_exempt
        async def free() -> str:
            return "free"

        return app

    def quart(self) -> Any:
        app = Quart("shop")

        @app.route("/pay", methods=["GET", "POST"])
        @idempotent(OPTIONAL)
        async def pay() -> str:
            return "paid"

        @app.route("/thread", methods=["GET", "POST"])
        @idempotent(OPTIONAL)
        def in_thread() -> str:
            return "paid"

        @app.route("/free", methods=["GET", "POST"])
        @idempotency_exempt
        async def free() -> str:
            return "free"

        return app


def ask(app: Any, *paths: str, method: str = "POST", key: str | None = None) -> None:
    async def asked() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            for path in paths:
                headers = {} if key is None else {"Idempotency-Key": key}
                assert (await client.request(method, path, headers=headers)).status_code == 200, path

    asyncio.run(asked())


frameworks = pytest.mark.parametrize("name", ["starlette", "fastapi", "quart"])


@frameworks
def test_without_the_middleware_each_marked_endpoint_warns_once(name: str, warned: Warned) -> None:
    app = getattr(Front(), name)()
    ask(app, "/free")
    assert warned() == []
    ask(app, "/pay", "/pay", "/thread", key="k")
    assert warned() == ["pay", "in_thread"]


@frameworks
def test_with_the_middleware_nothing_is_said(name: str, warned: Warned) -> None:
    app = getattr(Front(), name)()
    if name == "quart":
        protect_quart(app, **OPTIONS)
    else:
        protect(app, **OPTIONS)
    for key in (None, "k"):
        ask(app, "/pay", "/thread", "/free", key=key)
    ask(app, "/pay", "/thread", "/free", method="GET")
    assert warned() == []


def test_a_class_warns_too(warned: Warned) -> None:
    app = Front().starlette()
    ask(app, "/class", "/class")
    assert warned() == ["Payments"]
    protect(app := Front().starlette(), **OPTIONS)
    ask(app, "/class")
    ask(app, "/class", method="GET")
    assert warned() == ["Payments"]


def test_a_middleware_that_cannot_find_the_mark_is_no_protection(warned: Warned) -> None:
    """The plain one does not know Quart's routes."""
    app = Front().quart()
    ask(asgi.IdempotencyMiddleware(app, **OPTIONS), "/pay")
    assert warned() == ["pay"]


def test_an_operation_knows_its_policy_whatever_finds_it(warned: Warned) -> None:
    app = Front().quart()
    ask(asgi.IdempotencyMiddleware(app, **OPTIONS), "/pay", key="k")
    assert warned() == [], "a rule of the middleware's protects it"


def flask() -> Flask:
    app = Flask("shop")

    @app.route("/pay", methods=["GET", "POST"])
    @idempotent(OPTIONAL)
    def pay() -> str:
        return "paid"

    @app.post("/free")
    @idempotency_exempt
    def free() -> str:
        return "free"

    @idempotent(OPTIONAL)
    class Payments(MethodView):
        def post(self) -> str:
            return "paid"

    app.add_url_rule("/class", view_func=Payments.as_view("class"))
    return app


def test_flask(warned: Warned) -> None:
    app = flask()
    for path in ("/free", "/pay", "/pay", "/class", "/class"):
        app.test_client().post(path)
    assert warned() == ["pay", "Payments"]


def test_flask_behind_the_middleware(warned: Warned) -> None:
    app = flask()
    Idempotency(app, **OPTIONS)
    for path in ("/free", "/pay", "/class"):
        app.test_client().post(path)
        app.test_client().post(path, headers={"Idempotency-Key": path})
    app.test_client().get("/pay")
    assert warned() == []


def test_plain_wsgi_does_not_find_the_marks_of_flask(warned: Warned) -> None:
    app = flask()
    app.wsgi_app = wsgi.IdempotencyMiddleware(app.wsgi_app, **OPTIONS)  # type: ignore[method-assign]
    app.test_client().post("/pay")
    assert warned() == ["pay"]


@pytest.mark.parametrize("protected", [True, False])
def test_litestar(protected: bool, warned: Warned) -> None:
    @litestar_post("/pay", status_code=200)
    @idempotent(OPTIONAL)
    async def pay() -> None: ...

    plugins = [IdempotencyPlugin(**OPTIONS)] if protected else []
    ask(Litestar([pay], plugins=plugins, logging_config=None), "/pay", "/pay")
    assert warned() == ([] if protected else ["pay"])


@pytest.mark.parametrize("served", [ByWsgi, ByAsgi])
@pytest.mark.parametrize("protected", [True, False])
def test_django(served: Callable[[], Any], protected: bool, warned: Warned, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.http import HttpResponse
    from django.urls import path
    from django.views import View

    @idempotent(OPTIONAL)
    def pay(request: Any) -> HttpResponse:
        return HttpResponse(b"paid")

    @idempotent(OPTIONAL)
    async def apay(request: Any) -> HttpResponse:
        return HttpResponse(b"paid")

    @idempotency_exempt
    def free(request: Any) -> HttpResponse:
        return HttpResponse(b"free")

    @idempotent(OPTIONAL)
    class Payments(View):  # type: ignore[misc]
        def post(self, request: Any) -> HttpResponse:
            return HttpResponse(b"paid")

    class Urls:
        urlpatterns = [
            path("pay", pay),
            path("apay", apay),
            path("free", free),
            path("class", Payments.as_view()),
        ]

    chain = ["semel.django.IdempotencyMiddleware"] if protected else []
    with override_settings(SEMEL=OPTIONS, MIDDLEWARE=chain, ROOT_URLCONF=Urls):
        calls = served()
        for where in ("/free", "/pay", "/apay", "/class", "/pay"):
            assert calls(where).status == 200
            assert calls(where, idempotency_key="k").status == 200
        assert calls("/pay", method="GET").status == 200
        calls.close()
    assert warned() == ([] if protected else ["pay", "apay", "Payments"])


def test_a_marked_function_looks_like_itself() -> None:
    def pay(payment: Payment, *, fast: bool = False) -> str:
        """Pay."""
        return "paid"

    marked = idempotent()(pay)
    assert inspect.signature(marked, eval_str=True) == inspect.signature(pay, eval_str=True)
    assert (marked.__name__, marked.__doc__, marked.__module__) == ("pay", "Pay.", __name__)
    assert marked.__globals__ is pay.__globals__


def test_what_is_exempted_later_is_exempt(warned: Warned) -> None:
    @idempotency_exempt
    @idempotent()
    def pay() -> str:
        return "paid"

    assert pay() == "paid"
    assert warned() == []


def test_what_yields_is_left_alone() -> None:
    def pay() -> Iterator[str]:
        yield "paid"

    assert idempotent()(pay) is pay
