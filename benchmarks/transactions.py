"""What exactly-once costs: a transaction with one business row, with its record in it and without.

Both commit to the same database; rounds alternate and the medians are compared. A replay is measured beside them.
`python -m benchmarks.transactions`.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import asyncpg
import psycopg

from semel import open_store
from semel.transaction import within
from servers.postgres import PostgresServer

ROUNDS, ROUND_S = 7, 0.4
CREATE = "CREATE TABLE payments (id text PRIMARY KEY, amount integer NOT NULL)"
INSERT = "INSERT INTO payments VALUES ({}, 10)"
RESULT = {"payment": "x" * 32, "amount": 10}
Step = Callable[[str], None]


def rate(step: Step) -> float:
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < ROUND_S:
        step(secrets.token_hex(16))
        done += 1
    return done / (time.perf_counter() - started)


def compare(name: str, plain: Step, once: Step, replay: Step) -> None:
    """Transactions per second without and with a record, and replays; the ratios are what means something."""
    rates: dict[str, list[float]] = {"plain": [], "once": [], "replay": []}
    for each in (plain, once, replay):
        rate(each)  # warm up
    for _ in range(ROUNDS):
        for label, step in (("plain", plain), ("once", once), ("replay", replay)):
            rates[label].append(rate(step))
    without, within_it, again = (median(rates[label]) for label in ("plain", "once", "replay"))
    print(
        f"{name:<34}{without:>10,.0f}{within_it:>10,.0f}{within_it / without:>8.2f}{again / without:>10.2f}", flush=True
    )


def on_psycopg(url: str) -> tuple[Step, Step, Step]:
    connection = psycopg.connect(url)

    def plain(name: str) -> None:
        with connection.transaction():
            connection.execute(INSERT.format("%s"), [name])

    def once(name: str) -> None:
        with connection.transaction(), within(connection).operation(name) as op:
            if not op.replayed:
                connection.execute(INSERT.format("%s"), [name])
                op.result = RESULT

    once("known")
    return plain, once, lambda _: once("known")


def on_asyncpg(url: str) -> tuple[Step, Step, Step]:
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(url))

    async def plain(name: str) -> None:
        async with connection.transaction():
            await connection.execute(INSERT.format("$1"), name)

    async def once(name: str) -> None:
        async with connection.transaction(), within(connection).operation(name) as op:
            if not op.replayed:
                await connection.execute(INSERT.format("$1"), name)
                op.result = RESULT

    loop.run_until_complete(once("known by asyncpg"))
    return (
        lambda name: loop.run_until_complete(plain(name)),
        lambda name: loop.run_until_complete(once(name)),
        lambda _: loop.run_until_complete(once("known by asyncpg")),
    )


def on_sqlite(path: str, synchronous: str) -> tuple[Step, Step, Step]:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA synchronous = {synchronous}")

    def plain(name: str) -> None:
        with connection:
            connection.execute(INSERT.format("?"), [name])

    def once(name: str) -> None:
        with connection, within(connection).operation(name) as op:
            if not op.replayed:
                connection.execute(INSERT.format("?"), [name])
                op.result = RESULT

    once(f"known {synchronous}")
    return plain, once, lambda _: once(f"known {synchronous}")


@contextmanager
def databases() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as server:
        postgres, path = server.create_database("bench"), f"{folder}/bench.db"
        for url in (postgres, f"sqlite:///{path}"):
            with open_store(url) as store:  # type: ignore[attr-defined]
                store.migrate()
        with psycopg.connect(postgres) as connection:
            connection.execute(CREATE)
        with sqlite3.connect(path) as lite:
            lite.execute(CREATE)
        lite.close()
        yield postgres, path


def main() -> None:
    print(f"transactions per second; {ROUNDS} alternating rounds of {ROUND_S:g} s, medians\n")
    print(f"{'database, driver':<34}{'without':>10}{'with':>10}{'ratio':>8}{'replay':>10}")
    with databases() as (postgres, path):
        compare("PostgreSQL, psycopg", *on_psycopg(postgres))
        compare("PostgreSQL, asyncpg", *on_asyncpg(postgres))
        compare("SQLite, synchronous=full", *on_sqlite(path, "full"))
        compare("SQLite, synchronous=normal", *on_sqlite(path, "normal"))


if __name__ == "__main__":
    main()
