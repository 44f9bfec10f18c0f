"""Connections of every kind, in pools of a fixed size: what was given back is given to the next request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

POOL = 6
POOL_WAIT_S = 8.0
BUSY_S = 5.0
INSERT = "INSERT INTO payments (arm, name, run, position) VALUES (:arm, :name, :run, :position)"
CHANGE = "UPDATE accounts SET balance = balance + 1 WHERE id = :id"
NAMED = re.compile(r":(\w+)")
Values = Mapping[str, object]


@dataclass(frozen=True)
class Connections:
    """For tasks. `begin` opens a transaction and commits it, `lent` says how many connections are not in the pool."""

    begin: Callable[[], AbstractAsyncContextManager[Any]]
    execute: Callable[[Any, str, Values], Any]
    lent: Callable[[], int]


@dataclass(frozen=True)
class ThreadConnections:
    """The same for threads."""

    begin: Callable[[], AbstractContextManager[Any]]
    execute: Callable[[Any, str, Values], Any]
    lent: Callable[[], int]


class PsycopgPool:
    """As the pool of psycopg: commits or rolls back at the end of the block, and drops what is not usable then."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._slots = asyncio.Semaphore(POOL)
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self.lent = 0

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with asyncio.timeout(POOL_WAIT_S):
            await self._slots.acquire()
        self.lent += 1
        try:
            async with self._borrowed() as connection:
                try:
                    yield connection
                except BaseException:
                    with suppress(psycopg.Error):
                        await connection.rollback()
                    raise
                await connection.commit()
        finally:
            self.lent -= 1
            self._slots.release()

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        while self._idle and self._idle[-1].closed:
            self._idle.pop()
        connection = self._idle.pop() if self._idle else await psycopg.AsyncConnection.connect(self._url)
        try:
            yield connection
        finally:
            if connection.info.transaction_status is TransactionStatus.IDLE:
                self._idle.append(connection)
            else:
                await connection.close()


class AsyncpgPool:
    """The driver's own, which is made when an event loop runs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: Any = None
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Any]:
        async with self._lock:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(self._url, min_size=0, max_size=POOL)
        async with self._pool.acquire(timeout=POOL_WAIT_S) as connection, connection.transaction():
            yield connection

    def lent(self) -> int:
        return 0 if self._pool is None else self._pool.get_size() - self._pool.get_idle_size()


def connections_of(arm: str, url: str) -> Connections:
    match arm:
        case "psycopg":
            psycopgs = PsycopgPool(url)
            return Connections(psycopgs.begin, _execute_psycopg, lambda: psycopgs.lent)
        case "asyncpg" | "none":
            asyncpgs = AsyncpgPool(url)
            return Connections(asyncpgs.begin, _execute_asyncpg, asyncpgs.lent)
        case _:
            engine = create_async_engine(_dialect(arm, url), **_options(arm))
            return Connections(async_sessionmaker(engine).begin, _execute_session, lambda: _lent(engine.pool))


def thread_connections_of(arm: str, url: str) -> ThreadConnections:
    engine = sa.create_engine(_dialect(arm, url), **_options(arm))
    return ThreadConnections(sessionmaker(engine).begin, _execute_session, lambda: _lent(engine.pool))


def _lent(pool: Any) -> int:
    count: int = pool.checkedout()
    return count


def _dialect(arm: str, url: str) -> str:
    database, _, rest = url.partition(":")
    driver = arm.partition("-")[2]
    return url if driver == "sqlite" else f"{database}+{driver}:{rest}"


def _options(arm: str) -> dict[str, Any]:
    timeout = {"connect_args": {"timeout": BUSY_S}} if arm.endswith("sqlite") else {}
    return {"pool_size": POOL, "max_overflow": 0, "pool_timeout": POOL_WAIT_S, **timeout}


async def _execute_psycopg(connection: Any, statement: str, values: Values) -> None:
    await connection.execute(NAMED.sub(r"%(\1)s", statement), values)


async def _execute_asyncpg(connection: Any, statement: str, values: Values) -> None:
    names = NAMED.findall(statement)
    numbered = NAMED.sub(lambda name: f"${names.index(name[1]) + 1}", statement)
    await connection.execute(numbered, *(values[name] for name in names))


def _execute_session(session: Any, statement: str, values: Values) -> Any:
    return session.execute(sa.text(statement), values)
