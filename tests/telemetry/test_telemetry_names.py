"""No log record has a key's name in the clear, whatever goes wrong: a name may be all that a stranger needs."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.event import listen
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import semel
from semel import Key, Policy, StoreUnavailable
from semel.asgi import IdempotencyMiddleware
from semel.events import EventKind
from semel.stores.memory import MemoryStore
from semel.transaction import AsyncTransactionStore
from telemetry.shop import SECRET_KEY, Shop

KEY = Key("shop", "POST /payments/17/capture", SECRET_KEY)


class Everything(logging.Handler):
    """All that a formatter could write: the message, the traceback, and every attribute of the record."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{self.format(record)} {vars(record)}")


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What is logged, and at the end that the name is nowhere in it."""
    handler, log = Everything(), logging.getLogger("semel")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield handler.texts
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    assert handler.texts, "something was logged"
    assert [text for text in handler.texts if SECRET_KEY in text] == []


def test_decisions_and_failures_of_a_front(tmp_path: Path, logged: list[str]) -> None:
    shop = Shop(tmp_path, lambda event: None)

    async def work() -> None:
        for do in ("refuse", "pay", "pay", "another request"):
            await shop.capture(do=do)
        with closing(sqlite3.connect(tmp_path / "semel.db")) as connection, connection:
            connection.execute("UPDATE semel_records SET state = 7")
        assert (await shop.capture()).status_code == 500

    shop.run(work)
    assert shop.ledger == ["refuse", "pay"]
    told = " ".join(logged)
    assert all(kind.value in told for kind in (EventKind.RELEASED, EventKind.MISMATCHED, EventKind.UNREADABLE))
    assert KEY.name_digest in told


def test_a_store_that_cannot_claim(logged: list[str]) -> None:
    class Away(MemoryStore):
        def _call(self, call: Any) -> Any:
            raise StoreUnavailable(f"{call.key} changed hands too often")

    with pytest.raises(StoreUnavailable):
        semel.run(KEY, print, store=Away())
    assert "store_failed" in " ".join(logged)


def test_a_transaction_that_does_not_commit(tmp_path: Path, logged: list[str]) -> None:
    """The constraint is looked at when the transaction ends."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    listen(engine.sync_engine, "connect", lambda raw, _: raw.execute("PRAGMA foreign_keys = ON").close())
    store = AsyncTransactionStore(async_sessionmaker(engine).begin)

    async def pay(request: Request) -> JSONResponse:
        await store.current().execute(sa.text("INSERT INTO payments VALUES (1, 'nobody')"))
        return JSONResponse({"paid": 1}, status_code=201)

    app = IdempotencyMiddleware(
        Starlette(routes=[Route("/pay", pay, methods=["POST"])]),
        store=store,
        policy=Policy(guarantee="exactly-once"),
        identify=lambda _: "shop",
    )

    async def main() -> int:
        with closing(semel.open_store(f"sqlite:///{tmp_path}/shop.db")) as file:
            file.purge(limit=1)
        async with engine.begin() as connection:
            await connection.execute(sa.text("CREATE TABLE customers (name TEXT PRIMARY KEY)"))
            await connection.execute(
                sa.text(
                    "CREATE TABLE payments (id INTEGER PRIMARY KEY, customer TEXT "
                    "REFERENCES customers (name) DEFERRABLE INITIALLY DEFERRED)"
                )
            )
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            answer = await client.post("/pay", headers={"Idempotency-Key": SECRET_KEY})
        async with engine.begin() as connection:
            assert (await connection.execute(sa.text("SELECT count(*) FROM payments"))).scalar() == 0
        await engine.dispose()
        return answer.status_code

    assert asyncio.run(main()) >= 500
    assert "did not commit" in " ".join(logged)
