"""A transaction that publishes or receives a message beside the same transaction that does not.

One insert of the business in each. What `publish` costs is the ratio to the transaction alone; what `receive` costs is
the ratio to the bare handler, which is the same transaction.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, closing
from functools import partial
from pathlib import Path

import asyncpg
import psycopg
import uvloop

from benchmarks.calls import each_us, per_second
from benchmarks.exactly_once import ALONE, CREATE, DRIVERS, PAY, POOL
from benchmarks.places import Places, migrate
from benchmarks.results import PER_SECOND, Found
from benchmarks.rounds import aalternate, latencies, measured
from benchmarks.sizes import Size
from semel.transaction import within

PUBLISH, GIVEN, RECEIVE, DUPLICATE = "publish", "publish with an id", "receive", "duplicate"
TOPIC, PAYLOAD, HANDLER = "payments.made", {"amount": 10, "currency": "EUR"}, "ledger"
COUNT = "SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM semel_outbox)"
Steps = Mapping[str, Callable[[], Awaitable[None]]]


def measure(size: Size, places: Places) -> Iterator[Found]:
    url = places.fresh_database()
    yield from uvloop.run(compared("asyncpg", on_asyncpg(url), (1, POOL), size))
    yield from uvloop.run(compared("psycopg", on_psycopg(url), (1,), size))
    for synchronous in ("full", "normal"):
        yield from uvloop.run(
            compared(f"sqlite3, {synchronous}", on_sqlite(places.fresh_file(), synchronous), (1,), size)
        )


async def compared(
    driver: str, opened: AbstractAsyncContextManager[Steps], loads: Sequence[int], size: Size
) -> list[Found]:
    found: list[Found] = []
    store, _ = DRIVERS[driver]
    async with opened as steps:
        await steps[DUPLICATE]()
        for callers in loads:
            runs = {who: partial(per_second, run, callers, size.round_s / 2) for who, run in steps.items()}
            for who, values in (await aalternate(runs, size.rounds)).items():
                found.append(measured(f"message, {driver}", who, store, callers, PER_SECOND, values))
        for who, run in steps.items():
            found += latencies(f"message, {driver}, lone", who, store, 1, await each_us(run, size.samples))
    return found


def checked(paid: int, published: int) -> None:
    assert paid >= published > 1, f"{published} messages of {paid} payments"


@asynccontextmanager
async def on_asyncpg(url: str) -> AsyncIterator[Steps]:
    async with asyncpg.create_pool(url, min_size=POOL, max_size=POOL) as pool:
        await pool.execute(CREATE.format("bigserial"))
        known = secrets.token_hex(16)

        async def alone() -> None:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(PAY)

        async def publish(given: bool) -> None:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(PAY)
                await within(connection).publish(TOPIC, PAYLOAD, id=secrets.token_hex(16) if given else None)

        async def receive(name: str | None) -> None:
            async with (
                pool.acquire() as connection,
                connection.transaction(),
                within(connection).receive(name or secrets.token_hex(16), handler=HANDLER) as message,
            ):
                if not message.duplicate:
                    await connection.execute(PAY)

        yield {
            ALONE: alone,
            PUBLISH: partial(publish, False),
            GIVEN: partial(publish, True),
            RECEIVE: partial(receive, None),
            DUPLICATE: partial(receive, known),
        }
        checked(*await pool.fetchrow(COUNT))


@asynccontextmanager
async def on_psycopg(url: str) -> AsyncIterator[Steps]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(CREATE.format("bigserial"))
        yield on_connection(connection, connection.transaction)
        checked(*connection.execute(COUNT).fetchall()[0])


@asynccontextmanager
async def on_sqlite(path: Path, synchronous: str) -> AsyncIterator[Steps]:
    migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(CREATE.format("integer"))
        yield on_connection(connection, lambda: connection)
        checked(*connection.execute(COUNT).fetchall()[0])


def on_connection(
    connection: psycopg.Connection | sqlite3.Connection, begin: Callable[[], AbstractContextManager[object]]
) -> Steps:
    """The steps of a sync driver, for a lone caller."""
    known = secrets.token_hex(16)

    async def alone() -> None:
        with begin():
            connection.execute(PAY)

    async def publish(given: bool) -> None:
        with begin():
            connection.execute(PAY)
            within(connection).publish(TOPIC, PAYLOAD, id=secrets.token_hex(16) if given else None)

    async def receive(name: str | None) -> None:
        with begin(), within(connection).receive(name or secrets.token_hex(16), handler=HANDLER) as message:
            if not message.duplicate:
                connection.execute(PAY)

    return {
        ALONE: alone,
        PUBLISH: partial(publish, False),
        GIVEN: partial(publish, True),
        RECEIVE: partial(receive, None),
        DUPLICATE: partial(receive, known),
    }
