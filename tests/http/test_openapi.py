"""Schemas show the key's header and the problems on protected operations, beside what was there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from litestar import Litestar
from litestar import post as litestar_post
from litestar.params import FromPath, JSONBody
from litestar.testing import TestClient
from pydantic import BaseModel

from semel import Policy
from semel.asgi import Rule
from semel.fastapi import idempotency_exempt, idempotent, protect
from semel.http.openapi import describe
from semel.litestar import IdempotencyPlugin


class Payment(BaseModel):
    amount: int


def schema_of_fastapi() -> dict[str, Any]:
    router = APIRouter(prefix="/v1")

    @router.post("/captures/{id}")
    @idempotent(Policy(required=True, key_format="uuid"))
    async def capture(id: int, payment: Payment) -> Payment:
        return payment

    app = FastAPI()
    app.include_router(router)

    @app.post("/payments")
    async def pay(payment: Payment) -> Payment:
        return payment

    @app.post("/free")
    @idempotency_exempt
    async def free() -> None: ...

    @app.get("/payments")
    async def payments() -> None: ...

    protect(app, store="memory://", identify=lambda scope: "me", rules=[Rule("POST /elsewhere")])
    app.openapi()
    return app.openapi()


def header(operation: dict[str, Any]) -> dict[str, Any] | None:
    return next((each for each in operation.get("parameters", []) if each["name"] == "Idempotency-Key"), None)


def test_fastapi_shows_the_header_and_the_problems() -> None:
    paths = schema_of_fastapi()["paths"]
    pay = paths["/payments"]["post"]
    found = header(pay)
    assert found is not None
    assert (found["in"], found["required"], found["schema"]["maxLength"]) == ("header", False, 255)
    assert {"400", "409", "422"} <= pay["responses"].keys()
    both = pay["responses"]["422"]["content"]
    assert both.keys() == {"application/json", "application/problem+json"}, (
        "merged with FastAPI's own 422, not replaced"
    )
    assert "Validation Error" in pay["responses"]["422"]["description"]


def test_marks_decide_over_rules() -> None:
    schema = schema_of_fastapi()
    capture = header(schema["paths"]["/v1/captures/{id}"]["post"])
    assert capture is not None
    assert capture["required"] is True
    assert capture["schema"]["format"] == "uuid"
    assert "required" in schema["paths"]["/v1/captures/{id}"]["post"]["responses"]["400"]["description"]
    assert header(schema["paths"]["/free"]["post"]) is None
    assert header(schema["paths"]["/payments"]["get"]) is None, "safe methods are never touched"


def test_asking_twice_describes_once() -> None:
    pay = schema_of_fastapi()["paths"]["/payments"]["post"]
    assert sum(each["name"] == "Idempotency-Key" for each in pay["parameters"]) == 1
    assert pay["responses"]["409"]["description"].count("still running") == 1
    again = describe({"paths": {"/payments": {"post": pay}}}, lambda method, path: Policy())
    assert again["paths"]["/payments"]["post"] == pay


def test_litestar_shows_them_too() -> None:
    @litestar_post("/payments")
    async def pay(data: JSONBody[Payment]) -> Payment:
        return data

    @litestar_post("/captures/{payment_id:int}", opt={"semel": Policy(required=True, key_format=re.compile("[a-z]+"))})
    async def capture(payment_id: FromPath[int]) -> None: ...

    @litestar_post("/free", opt={"semel": None})
    async def free() -> None: ...

    plugin = IdempotencyPlugin(store="memory://", identify=lambda scope: "me", rules=[Rule("POST /elsewhere")])
    with TestClient(Litestar([pay, capture, free], plugins=[plugin])) as client:
        paths = client.get("/schema/openapi.json").json()["paths"]
    found = header(paths["/payments"]["post"])
    assert found is not None
    assert found["required"] is False
    contents = paths["/payments"]["post"]["responses"]["400"]["content"]
    assert contents.keys() == {"application/json", "application/problem+json"}, "beside Litestar's own 400"
    marked = header(paths["/captures/{payment_id}"]["post"])
    assert marked is not None
    assert (marked["required"], marked["schema"]["pattern"]) == (True, "[a-z]+")
    assert header(paths["/free"]["post"]) is None


@pytest.mark.parametrize(("format", "shown"), [("ulid", "pattern"), ("uuid", "format"), ("any", None)])
def test_the_format_of_keys_is_shown(format: Any, shown: str | None) -> None:
    document = describe({"paths": {"/p": {"put": {}}}}, lambda method, path: Policy(key_format=format))
    found = header(document["paths"]["/p"]["put"])
    assert found is not None
    assert found["schema"].keys() - {"type", "minLength", "maxLength"} == ({shown} if shown else set())
    assert document["components"]["schemas"]["IdempotencyProblem"]["required"]


def test_a_schema_without_protected_operations_is_left_alone() -> None:
    document: dict[str, Any] = {"paths": {"/p": {"get": {}, "post": {}}}}
    assert describe(document, lambda method, path: None) == {"paths": {"/p": {"get": {}, "post": {}}}}


def test_errors_like_stripe_s_have_a_schema_of_their_own() -> None:
    described = describe({"paths": {"/pay": {"post": {}}}}, lambda *_: Policy.stripe())
    responses = described["paths"]["/pay"]["post"]["responses"]
    assert set(responses) == {"400", "409"}, "a reused key is 400, too"
    for response in responses.values():
        reference = response["content"]["application/json"]["schema"]["$ref"]
        assert reference == "#/components/schemas/IdempotencyError"
    assert set(described["components"]["schemas"]) == {"IdempotencyError"}
