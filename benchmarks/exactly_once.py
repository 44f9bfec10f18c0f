"""An exactly-once transaction beside the same transaction without a record: what the record adds to it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial

import asyncpg
import uvloop

from benchmarks.apps import SEMEL
from benchmarks.calls import each_us, per_second
from benchmarks.places import Places
from benchmarks.results import PER_SECOND, Found
from benchmarks.rounds import aalternate, latencies, measured
from benchmarks.sizes import Size

ALONE = "the transaction alone"
POOL = 16


def measure(size: Size, places: Places) -> Iterator[Found]:
    yield from uvloop.run(postgres(places.fresh_database(), size))


async def postgres(url: str, size: Size) -> list[Found]:
    """One insert of the business in each transaction, with asyncpg."""
    from semel.transaction import within

    found: list[Found] = []
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=POOL, max_size=POOL))
        await pool.execute("CREATE TABLE payments (id bigserial PRIMARY KEY, amount int NOT NULL)")

        async def alone() -> None:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute("INSERT INTO payments (amount) VALUES (10)")

        async def once(key: str | None = None) -> None:
            async with (
                pool.acquire() as connection,
                connection.transaction(),
                within(connection).operation(key or secrets.token_hex(16)) as op,
            ):
                if not op.replayed:
                    await connection.execute("INSERT INTO payments (amount) VALUES (10)")
                    op.result = {"amount": 10}

        known = secrets.token_hex(16)
        await once(known)
        cells: dict[tuple[str, str], Callable[[], Awaitable[None]]] = {
            ("first", ALONE): alone,
            ("first", SEMEL): once,
            ("replay", SEMEL): partial(once, known),
        }
        for callers in (1, POOL):
            runs = {at: partial(per_second, run, callers, size.round_s / 2) for at, run in cells.items()}
            for (case, who), values in (await aalternate(runs, size.rounds)).items():
                found.append(measured(case, who, "postgres", callers, PER_SECOND, values))
        for (case, who), run in cells.items():
            found += latencies(f"{case}, lone", who, "postgres", 1, await each_us(run, size.samples))
        [paid, keyed] = [
            await pool.fetchval(f"SELECT count(*) FROM {table}") for table in ("payments", "semel_records")
        ]
        assert paid >= keyed > 1, (paid, keyed)
    return found
