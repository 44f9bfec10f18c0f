"""Handlers whose writes and whose stored answer are one transaction: Starlette, FastAPI, Flask and Django."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import Depends, FastAPI
from flask import Flask, abort, request
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
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
from semel.testing.proxy import Fault, FaultProxy, ProxyExchange
from semel.transaction import AsyncTransactionStore, TransactionStore
from transaction.modes import Effect, effects, sqlalchemy_url
from transaction.outbox_rows import ids

POLICY = Policy(guarantee="exactly-once", required=True, release_exceptions=(ConnectionError,))
TESTS = Path(__file__).parents[1]
DATABASES = [("postgres", "asyncpg"), ("sqlite", "aiosqlite"), ("mariadb", "aiomysql")]
on_servers = pytest.mark.parametrize(("database", "driver"), [DATABASES[0], DATABASES[2]])
ALIASES = {"default": "postgres", "lite": "sqlite", "maria": "mariadb"}


def asgi_app(store: AsyncTransactionStore[AsyncSession], running: Callable[[str], Any] | None = None) -> Any:
    async def pay(request: Request) -> JSONResponse:
        body = await request.json()
        store.current().add(Effect(name=body["name"]))
        await store.current().flush()
        if running is not None:
            await running(body["name"])
        if body["answer"] == "raise":
            raise ArithmeticError("on purpose")
        if body["answer"] == "release":
            raise ConnectionError("on purpose")
        return JSONResponse({"paid": body["name"]}, status_code=body["answer"])

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    return IdempotencyMiddleware(app, store=store, policy=POLICY, identify=lambda _: "shop")


@asynccontextmanager
async def calling(app: Any) -> Any:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:

        async def pay(name: str, answer: Any = 201) -> httpx.Response:
            return await client.post("/pay", json={"name": name, "answer": answer}, headers={"Idempotency-Key": name})

        yield pay


@asynccontextmanager
async def async_store(url: str, driver: str, **options: Any) -> Any:
    engine = create_async_engine(sqlalchemy_url(url, driver))
    try:
        yield AsyncTransactionStore(async_sessionmaker(engine).begin, **options)
    finally:
        await engine.dispose()


@pytest.mark.parametrize(("database", "driver"), DATABASES)
def test_starlette(database: str, driver: str, urls: Mapping[str, str]) -> None:
    url = urls[database]

    async def main() -> None:
        async with async_store(url, driver) as store, calling(asgi_app(store)) as pay:
            first, again = await pay("s.paid"), await pay("s.paid")
            assert (first.status_code, first.content) == (201, b'{"paid":"s.paid"}')
            assert (again.status_code, again.content) == (201, first.content)
            assert again.headers["idempotent-replayed"] == "true"
            for answer, status in ((422, 422), ("raise", 500)):
                first, again = await pay(f"s.{answer}", answer), await pay(f"s.{answer}", answer)
                assert (first.status_code, again.status_code) == (status, status)
                assert again.headers["idempotent-replayed"] == "true"
                assert again.content == first.content
            for answer in (429, "release"):  # nothing is kept of these
                for _ in range(2):
                    assert "idempotent-replayed" not in (await pay(f"s.{answer}", answer)).headers
            assert not store._twins.get().keys._claims

    asyncio.run(main())
    assert effects(url, "s.paid") == 1
    assert [effects(url, f"s.{answer}") for answer in (422, "raise", 429, "release")] == [0, 0, 0, 0]
    with semel.open_store(url) as ordinary:  # type: ignore[attr-defined]
        states = [ordinary.get(semel.Key("shop", "POST /pay", f"s.{name}")) for name in ("paid", "raise", "release")]
    assert [record and record.state.value for record in states] == ["succeeded", "failed", None]


@on_servers
def test_a_twin_waits_for_the_first_or_is_told_to_come_back(
    database: str, driver: str, urls: Mapping[str, str]
) -> None:
    url = urls[database]

    async def main() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def running(name: str) -> None:
            begun.set()
            await go_on.wait()

        async with (
            async_store(url, driver, wait=0.05) as hasty,
            async_store(url, driver) as patient,
            calling(asgi_app(hasty, running)) as pay,
            calling(asgi_app(patient)) as pay_later,
        ):
            first = asyncio.create_task(pay("twin"))
            await asyncio.wait_for(begun.wait(), 30)
            told = await pay("twin")
            assert (told.status_code, told.headers["retry-after"]) == (409, "1")
            second = asyncio.create_task(pay_later("twin"))
            await asyncio.sleep(0.01)
            go_on.set()
            assert [(await each).status_code for each in (first, second)] == [201, 201]
            assert (await second).headers["idempotent-replayed"] == "true"

    asyncio.run(main())
    assert effects(url, "twin") == 1


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER], ids=["not committed", "committed"])
@on_servers
def test_a_commit_whose_end_is_not_known_is_never_answered_with_success(
    database: str, driver: str, fault: Fault, urls: Mapping[str, str]
) -> None:
    """If it can be read back that the commit arrived, the answer is sent; else 503, and the repeat tells."""
    url, name = urls[database], f"lost.{fault.name}"

    def commits(exchange: ProxyExchange) -> bool:
        return b"COMMIT" in exchange.request and b"AUTOCOMMIT" not in exchange.request

    async def main() -> list[int]:
        with FaultProxy(url) as proxy:
            async with async_store(proxy.url, driver) as store, calling(asgi_app(store)) as pay:
                lost = proxy.inject(fault, when=commits)
                statuses = [(await pay(name)).status_code]
                assert lost.hits == 1
                statuses.append((await pay(name)).status_code)
                return statuses

    assert asyncio.run(main()) == ([503, 201] if fault is Fault.CUT_BEFORE else [201, 201])
    assert effects(url, name) == 1


def test_fastapi_gets_the_session_as_a_dependency(urls: Mapping[str, str]) -> None:
    url = urls["postgres"]

    async def main() -> None:
        async with async_store(url, "psycopg") as store:
            app = FastAPI()
            current = Depends(store.current)

            @app.post("/pay", status_code=201)
            async def pay(body: dict[str, Any], session: AsyncSession = current) -> str:
                session.add(Effect(name=body["name"]))  # flushed and committed with the answer
                return "paid"

            app.add_middleware(IdempotencyMiddleware, store=store, policy=POLICY, identify=lambda _: "shop")
            async with calling(app) as call:
                assert [(await call("fastapi")).text for _ in range(2)] == ['"paid"', '"paid"']

    asyncio.run(main())
    assert effects(url, "fastapi") == 1


def test_an_application_that_ignores_what_the_flush_raised_is_answered_for(urls: Mapping[str, str]) -> None:
    url, name = urls["postgres"], "ignored"

    async def main() -> None:
        async with async_store(url, "psycopg") as store:

            async def app(scope: Any, receive: Any, send: Any) -> None:
                store.current().add(Effect(name=name))
                store.current().add(Effect(name=None))  # refused when the session is flushed
                await send({"type": "http.response.start", "status": 201, "headers": []})
                with suppress(sa.exc.IntegrityError):
                    await send({"type": "http.response.body", "body": b"paid"})

            protected = IdempotencyMiddleware(app, store=store, policy=POLICY, identify=lambda _: "shop")
            async with calling(protected) as call:
                first, second = await call(name), await call(name)
                assert (first.status_code, first.text) == (second.status_code, second.text)
                assert first.status_code == 500

    asyncio.run(main())
    assert effects(url, name) == 0


@pytest.mark.parametrize(("database", "driver"), [("postgres", "psycopg"), ("sqlite", "pysqlite")])
def test_flask(database: str, driver: str, urls: Mapping[str, str]) -> None:
    url = urls[database]
    engine = sa.create_engine(sqlalchemy_url(url, driver))
    store: TransactionStore[Session] = TransactionStore(sessionmaker(engine).begin)
    app = Flask("shop")
    Idempotency(app, store=store, policy=POLICY, identify=lambda _: "shop")

    @app.post("/pay")
    def pay() -> tuple[dict[str, str], int]:
        body = request.get_json()
        store.current().add(Effect(name=body["name"]))
        store.current().flush()
        if body["answer"] == "raise":
            raise ArithmeticError("on purpose")
        if body["answer"] >= 400:
            abort(body["answer"])
        return {"paid": body["name"]}, body["answer"]

    def ask(name: str, answer: Any) -> Any:
        return app.test_client().post("/pay", json={"name": name, "answer": answer}, headers={"Idempotency-Key": name})

    for answer, status in ((201, 201), (409, 409), ("raise", 500)):
        name = f"flask.{answer}"
        replies = [ask(name, answer) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [status, status]
        assert replies[0].data == replies[1].data
        assert replies[1].headers["idempotent-replayed"] == "true"
        assert effects(url, name) == (1 if answer == 201 else 0)
    engine.dispose()


def test_outside_of_a_keyed_request_there_is_no_transaction(urls: Mapping[str, str]) -> None:
    store: TransactionStore[Session] = TransactionStore(sessionmaker(sa.create_engine("sqlite://")).begin)
    with pytest.raises(semel.errors.Misuse, match="required=True"):
        store.current()


@pytest.mark.parametrize("alias", ALIASES)
def test_django(alias: str, urls: Mapping[str, str]) -> None:
    """In a process of its own: a process has one Django project."""
    command = [sys.executable, "-m", "transaction.project", *(urls[each] for each in ALIASES.values()), alias]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=TESTS, env={**os.environ, "PYTHONPATH": str(TESTS)}
    )
    assert done.returncode == 0, done.stderr
    url = urls[ALIASES[alias]]
    expected = {"201": 1, "402": 0, "raise": 0, "break": 0, "unknown": 1, "timeout": 1, "stream": 2}
    if alias != "lite":
        expected["deadlock"] = 1
    assert {answer: effects(url, f"django.{answer}") for answer in expected} == expected
    published = {answer: len(ids(url, f"django.{answer}")) for answer in expected}
    assert published == {answer: min(count, 1) for answer, count in expected.items()}
    operation = Operation(Lease(semel.Key("shop", "POST /pay", "django.unknown"), "owner", 1, 0))
    assert ids(url, "django.unknown") == [operation.next_message_id()]
