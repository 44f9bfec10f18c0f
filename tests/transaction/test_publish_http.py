"""Handlers of exactly-once HTTP fronts publish in the transaction of their request, with an id from its key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from flask import Flask
from sqlalchemy.orm import sessionmaker
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import semel
from semel import Policy
from semel.asgi import IdempotencyMiddleware
from semel.core.records import Lease
from semel.flask import Idempotency
from semel.runtime.operation import Operation
from semel.transaction import RetryTransaction, TransactionStore, within
from transaction.modes import Effect, effects, sqlalchemy_url
from transaction.outbox_rows import ids
from transaction.test_transaction_http import DATABASES, async_store

POLICY = Policy(guarantee="exactly-once", required=True)


def derived(name: str, count: int) -> list[str]:
    """The ids of the messages of a request: the same in every attempt, in every process."""
    operation = Operation(Lease(semel.Key("shop", "POST /pay", name), "owner", 1, 0))
    return [operation.next_message_id() for _ in range(count)]


@pytest.mark.parametrize(("database", "driver"), DATABASES)
def test_asgi(database: str, driver: str, urls: Mapping[str, str]) -> None:
    url = urls[database]
    runs: list[str] = []

    async def main() -> None:
        async with async_store(url, driver) as store:

            async def pay(request: Request) -> JSONResponse:
                name = request.headers["idempotency-key"]
                runs.append(name)
                store.current().add(Effect(name=name))
                bound = within(store.current())
                made = [await bound.publish(name, {"number": number}, key=name) for number in (1, 2)]
                if name == "asgi.given-up" and runs.count(name) == 1:
                    raise RetryTransaction("on purpose")
                return JSONResponse(made, status_code=422 if name == "asgi.refused" else 201)

            app: Any = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
            app = IdempotencyMiddleware(app, store=store, policy=POLICY, identify=lambda _: "shop")
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:

                async def call(name: str) -> httpx.Response:
                    return await client.post("/pay", headers={"Idempotency-Key": name})

                first, again = await call("asgi.paid"), await call("asgi.paid")
                assert first.json() == again.json() == derived("asgi.paid", 2)
                assert again.headers["idempotent-replayed"] == "true"
                assert [(await call("asgi.refused")).status_code for _ in range(2)] == [422, 422]
                replies = [await call("asgi.given-up") for _ in range(3)]
                assert [reply.status_code for reply in replies] == [503, 201, 201]
                assert replies[1].json() == derived("asgi.given-up", 2)

    asyncio.run(main())
    assert ids(url, "asgi.paid") == derived("asgi.paid", 2)
    assert ids(url, "asgi.given-up") == derived("asgi.given-up", 2)
    assert ids(url, "asgi.refused") == []
    assert [effects(url, name) for name in ("asgi.paid", "asgi.given-up", "asgi.refused")] == [1, 1, 0]
    assert runs == ["asgi.paid", "asgi.refused", "asgi.given-up", "asgi.given-up"]


def test_flask(urls: Mapping[str, str]) -> None:
    url = urls["postgres"]
    engine = sa.create_engine(sqlalchemy_url(url, "psycopg"))
    store = TransactionStore(sessionmaker(engine).begin)
    app = Flask("shop")

    @app.post("/pay")
    def pay() -> Any:
        store.current().add(Effect(name="flask.publishes"))
        return {"id": within(store.current()).publish("flask.publishes", b"x")}

    Idempotency(app, store=store, policy=POLICY, identify=lambda _: "shop")
    replies = [app.test_client().post("/pay", headers={"Idempotency-Key": "f"}) for _ in range(2)]
    made = [reply.json["id"] for reply in replies if reply.json]
    assert made == ids(url, "flask.publishes") * 2 == derived("f", 1) * 2
    assert effects(url, "flask.publishes") == 1
    engine.dispose()
