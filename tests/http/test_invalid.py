"""A request that the framework refused before the endpoint ran gives its key back, where the policy says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx
import pytest
from django.test import override_settings
from django.urls import path
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from litestar import Litestar
from litestar import post as litestar_post
from litestar.exceptions import SerializationException, ValidationException
from litestar.params import JSONBody
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import django_site  # noqa: F401
from django_site import api
from django_site.calling import ByAsgi, ByWsgi
from django_site.views import effects as django_effects
from semel import Policy
from semel.fastapi import protect
from semel.litestar import IdempotencyPlugin

RELEASING = Policy(release_invalid=True)
GOOD, BAD, BROKEN, LATE = b'{"amount": 5}', b'{"amount": "five"}', b"{", b'{"amount": 7}'


class Payment(BaseModel):
    amount: int


def fastapi(effects: list[str], policy: Policy) -> Any:
    app = FastAPI()
    protect(app, store="memory://", identify=lambda scope: "me", policy=policy)

    def prepared() -> None:
        effects.append("dependency")

    @app.post("/pay", dependencies=[Depends(prepared)])
    async def pay(payment: Payment) -> dict[str, int]:
        effects.append("paid")
        if payment.amount == 7:
            raise RequestValidationError([{"loc": ("body",), "msg": "found out late", "type": "late"}])
        return {"paid": payment.amount}

    @app.post("/thread")
    def in_thread(payment: Payment) -> dict[str, int]:
        effects.append("paid")
        if payment.amount == 7:
            raise RequestValidationError([{"loc": ("body",), "msg": "found out late", "type": "late"}])
        return {"paid": payment.amount}

    return app


def litestar(effects: list[str], policy: Policy) -> Any:
    @litestar_post("/pay")
    async def pay(data: JSONBody[Payment]) -> dict[str, int]:
        effects.append("paid")
        if data.amount == 7:
            raise ValidationException("found out late")
        if data.amount == 8:
            raise SerializationException("an answer of somebody's that cannot be read")
        return {"paid": data.amount}

    @litestar_post("/thread", sync_to_thread=True)
    def in_thread(data: JSONBody[Payment]) -> dict[str, int]:
        effects.append("paid")
        if data.amount == 7:
            raise ValidationException("found out late")
        return {"paid": data.amount}

    return Litestar(
        [pay, in_thread],
        plugins=[IdempotencyPlugin(store="memory://", identify=lambda scope: "me", policy=policy)],
        logging_config=None,
    )


Make = Callable[[list[str], Policy], Any]
frameworks = pytest.mark.parametrize("make", [fastapi, litestar])
paths = pytest.mark.parametrize("path", ["/pay", "/thread"])


def ask(app: Any, *bodies: bytes, path: str = "/pay") -> list[httpx.Response]:
    """Requests under one key."""

    async def asked() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
            return [await client.post(path, content=body, headers=headers) for body in bodies]

    return asyncio.run(asked())


@frameworks
@paths
@pytest.mark.parametrize("invalid", [BAD, BROKEN, b"{}"])
def test_a_corrected_body_runs_under_the_same_key(make: Make, path: str, invalid: bytes) -> None:
    effects: list[str] = []
    first, corrected, again = ask(make(effects, RELEASING), invalid, GOOD, GOOD, path=path)
    assert first.status_code in (400, 422)
    assert corrected.status_code in (200, 201)
    assert again.headers["idempotent-replayed"] == "true"
    assert effects.count("paid") == 1


@frameworks
def test_by_default_the_refusal_is_the_answer(make: Make) -> None:
    effects: list[str] = []
    first, again, corrected = ask(make(effects, Policy()), BAD, BAD, GOOD)
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert corrected.status_code == 422
    assert corrected.json()["type"].endswith("#key-reused")
    assert "paid" not in effects


@frameworks
@paths
def test_what_the_endpoint_itself_raises_is_stored(make: Make, path: str) -> None:
    """The same exception, after the endpoint has done something."""
    effects: list[str] = []
    first, again = ask(make(effects, RELEASING), LATE, LATE, path=path)
    assert first.status_code in (400, 422)
    assert "found out late" in first.text
    assert again.headers["idempotent-replayed"] == "true"
    assert effects.count("paid") == 1


def test_what_litestar_makes_of_an_error_of_the_handler_is_stored() -> None:
    effects: list[str] = []
    _, again = ask(litestar(effects, RELEASING), b'{"amount": 8}', b'{"amount": 8}')
    assert again.headers["idempotent-replayed"] == "true"
    assert effects == ["paid"]


def test_the_dependencies_of_a_refused_request_have_run() -> None:
    effects: list[str] = []
    ask(fastapi(effects, RELEASING), BAD, BAD)
    assert effects == ["dependency", "dependency"], "as the documentation says"


@pytest.mark.parametrize("is_async", [True, False])
def test_a_handler_of_the_application_s_answers_whenever_it_is_registered(is_async: bool) -> None:
    effects: list[str] = []
    app = fastapi(effects, RELEASING)

    def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"own": True}, 418)

    async def arefuse(request: Request, error: RequestValidationError) -> JSONResponse:
        return refuse(request, error)

    app.add_exception_handler(RequestValidationError, arefuse if is_async else refuse)
    first, corrected = ask(app, BAD, GOOD)
    assert (first.status_code, first.json()) == (418, {"own": True})
    assert corrected.status_code == 200
    assert effects.count("paid") == 1


def test_a_dependency_that_raises_the_same_is_no_refusal_of_fastapi_s() -> None:
    """It may have done something before."""
    app, effects = FastAPI(), list[str]()
    protect(app, store="memory://", identify=lambda scope: "me", policy=RELEASING)

    def charges() -> None:
        effects.append("charged")
        raise RequestValidationError([{"loc": ("body",), "msg": "no", "type": "no"}])

    @app.post("/pay", dependencies=[Depends(charges)])
    async def pay() -> None:
        effects.append("paid")

    _, again = ask(app, GOOD, GOOD)
    assert again.headers["idempotent-replayed"] == "true"
    assert effects == ["charged"]


def test_starlette_is_protected_as_before() -> None:
    async def pay(request: Any) -> PlainTextResponse:
        return PlainTextResponse("paid", 422)

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    protect(app, store="memory://", identify=lambda scope: "me", policy=RELEASING)
    assert ask(app, GOOD, GOOD)[1].headers["idempotent-replayed"] == "true"


class Urls:
    urlpatterns = [
        path("api/orders", api.Orders.as_view()),
        path("api/hasty", api.HastyOrders.as_view()),
        path("api/kept", api.KeptOrders.as_view()),
    ]


@pytest.mark.parametrize("served", [ByWsgi, ByAsgi])
class TestDjangoRestFramework:
    @pytest.fixture
    def call(self, served: Callable[[], Any]) -> Any:
        django_effects.clear()
        semel = {"store": "memory://", "identify": lambda request: "me"}
        with override_settings(SEMEL=semel, MIDDLEWARE=["semel.django.IdempotencyMiddleware"], ROOT_URLCONF=Urls):
            given, calls = uuid4().hex, served()
            yield lambda path, body: calls(path, body, idempotency_key=given)
            calls.close()

    @pytest.mark.parametrize("invalid", [BAD, BROKEN, b"{}"])
    def test_what_its_own_create_refuses_gives_the_key_back(self, call: Any, invalid: bytes) -> None:
        answers = [call("/api/orders", body) for body in (invalid, GOOD, GOOD)]
        assert [answer.status for answer in answers] == [400, 201, 201]
        assert [answer["Idempotent-Replayed"] for answer in answers] == [None, None, "true"]
        assert django_effects == ["created"]

    def test_under_the_default_policy_it_is_the_answer(self, call: Any) -> None:
        answers = [call("/api/kept", body) for body in (BAD, BAD, GOOD)]
        assert [answer.status for answer in answers] == [400, 400, 422]
        assert django_effects == []

    def test_what_a_view_of_its_own_refuses_is_stored(self, call: Any) -> None:
        answers = [call("/api/hasty", body) for body in (BAD, BAD, GOOD)]
        assert [answer.status for answer in answers] == [400, 400, 422]
        assert django_effects == ["something"], "the view did something before it validated"

    def test_what_is_found_invalid_while_it_is_saved_is_stored(self, call: Any) -> None:
        late = b'{"amount": 101}'
        answers = [call("/api/orders", late) for _ in range(2)]
        assert [answer.status for answer in answers] == [400, 400]
        assert django_effects == ["created"]
