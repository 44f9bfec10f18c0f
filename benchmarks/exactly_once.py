"""An exactly-once transaction beside the same transaction without a record: what the record adds to it.

One insert of the business in each, through every kind of driver that has transactions of its own.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import partial
from pathlib import Path

import asyncpg
import psycopg
import uvloop

from benchmarks.apps import SEMEL
from benchmarks.calls import each_us, per_second
from benchmarks.places import Places, migrate
from benchmarks.results import PER_SECOND, Found
from benchmarks.rounds import aalternate, latencies, measured
from benchmarks.sizes import Size
from semel.transaction import within

ALONE = "the transaction alone"
POOL = 16
DRIVERS = {
    "asyncpg": ("postgres", "PostgreSQL, asyncpg"),
    "psycopg": ("postgres", "PostgreSQL, psycopg"),
    "sqlite3, full": ("sqlite", "SQLite, synchronous=full"),
    "sqlite3, normal": ("sqlite", "SQLite, synchronous=normal"),
}
"""Which store, and what the page calls it."""
CREATE = "CREATE TABLE IF NOT EXISTS payments (id {} PRIMARY KEY, amount int NOT NULL)"
PAY = "INSERT INTO payments (amount) VALUES (10)"
COUNT = "SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM semel_records)"
RESULT = {"amount": 10}
Steps = tuple[Callable[[], Awaitable[None]], Callable[[str], Awaitable[None]]]
"""The transaction alone, and with the record of a key."""


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
    async with opened as (alone, once):
        known = secrets.token_hex(16)
        await once(known)
        cells: dict[tuple[str, str], Callable[[], Awaitable[None]]] = {
            ("first", ALONE): alone,
            ("first", SEMEL): lambda: once(secrets.token_hex(16)),
            ("replay", SEMEL): partial(once, known),
        }
        for callers in loads:
            runs = {at: partial(per_second, run, callers, size.round_s / 2) for at, run in cells.items()}
            for (case, who), values in (await aalternate(runs, size.rounds)).items():
                found.append(measured(f"{case}, {driver}", who, store, callers, PER_SECOND, values))
        for (case, who), run in cells.items():
            found += latencies(f"{case}, {driver}, lone", who, store, 1, await each_us(run, size.samples))
    return found


def checked(paid: int, keyed: int) -> None:
    assert paid >= keyed > 1, f"{keyed} keys have {paid} effects"


@asynccontextmanager
async def on_asyncpg(url: str) -> AsyncIterator[Steps]:
    async with asyncpg.create_pool(url, min_size=POOL, max_size=POOL) as pool:
        await pool.execute(CREATE.format("bigserial"))

        async def alone() -> None:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(PAY)

        async def once(key: str) -> None:
            async with (
                pool.acquire() as connection,
                connection.transaction(),
                within(connection).operation(key, scope="operation") as op,
            ):
                if not op.replayed:
                    await connection.execute(PAY)
                    op.result = RESULT

        yield alone, once
        checked(*await pool.fetchrow(COUNT))


@asynccontextmanager
async def on_psycopg(url: str) -> AsyncIterator[Steps]:
    """The sync driver, for a lone caller."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(CREATE.format("bigserial"))

        async def alone() -> None:
            with connection.transaction():
                connection.execute(PAY)

        async def once(key: str) -> None:
            with connection.transaction(), within(connection).operation(key, scope="operation") as op:
                if not op.replayed:
                    connection.execute(PAY)
                    op.result = RESULT

        yield alone, once
        checked(*connection.execute(COUNT).fetchall()[0])


@asynccontextmanager
async def on_sqlite(path: Path, synchronous: str) -> AsyncIterator[Steps]:
    migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(CREATE.format("integer"))

        async def alone() -> None:
            with connection:
                connection.execute(PAY)

        async def once(key: str) -> None:
            with connection, within(connection).operation(key, scope="operation") as op:
                if not op.replayed:
                    connection.execute(PAY)
                    op.result = RESULT

        yield alone, once
        checked(*connection.execute(COUNT).fetchall()[0])
