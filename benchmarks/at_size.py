"""PostgreSQL with very many keys: what a key and a call take, and whether the size holds as keys turn over.

In the turnover as many records are purged as are added. So whatever grows is what vacuum has not cleaned up yet.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import quantiles

import psycopg
import uvloop

from benchmarks.apps import SEMEL
from benchmarks.calls import Once, each_us, pair, per_second, replay
from benchmarks.filling import OWNER, fill, filled
from benchmarks.places import Places, migrate
from benchmarks.results import BYTES, MILLISECONDS, P50, PER_SECOND, Found
from benchmarks.rounds import aalternate, measured
from benchmarks.sizes import Size
from semel import open_async_store
from semel.store import AsyncStore
from semel.stores.postgres.upkeep import HOLDING
from servers.postgres import PostgresServer, database_of, with_database

FEW = 1_000
TOGETHER = 64
SERVER = ("shared_buffers=2GB", "max_wal_size=8GB", "checkpoint_timeout=15min")
DEFAULTS, HOLD, HELD_BACK = "defaults", "settings that hold", "settings that hold, beside an open transaction"
BATCH = 500
"""What `semel.purger` takes at once."""
RELATIONS = """
SELECT CASE WHEN c.relname LIKE 'pg_toast%' THEN 'TOAST' ELSE c.relname END, pg_relation_size(c.oid)
FROM pg_class r JOIN pg_class c ON c.oid = r.oid OR c.oid = r.reltoastrelid
    OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid IN (r.oid, r.reltoastrelid))
WHERE r.oid = 'semel_records'::regclass"""
UPKEEP = """
SELECT n_dead_tup, autovacuum_count, autoanalyze_count FROM pg_stat_all_tables
WHERE relid = 'semel_records'::regclass"""


def measure(size: Size, places: Places) -> Iterator[Found]:
    with PostgresServer(*SERVER) as server:
        few, many = (server.create_database(name) for name in ("few", "many"))
        expiring = int(size.many * size.expiring)
        for url, expired, count in ((few, 0, FEW), (many, expiring, size.many)):
            migrate(url)
            fill("postgres", url, 0, expired, expired=True)
            fill("postgres", url, expired, count)
            tidy(url)
        yield from bytes_of(many, size.many, "filled")
        yield from uvloop.run(beside_few(few, many, size))
        tidy(many)
        for name in (HOLD, DEFAULTS, HELD_BACK):
            url = copy_of(many, server)
            set_upkeep(url, {} if name == DEFAULTS else HOLDING)
            yield from uvloop.run(turned_over(name, url, size))
            server.drop_database(database_of(url))


def tidy(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE, INDEX_CLEANUP ON) semel_records")


def copy_of(url: str, server: PostgresServer) -> str:
    """So that each turnover begins with the same pages."""
    place = with_database(url, "turnover")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE turnover TEMPLATE {database_of(url)} STRATEGY file_copy".encode())
    return place


def set_upkeep(url: str, options: Mapping[str, str]) -> None:
    """With no options the server's own."""
    given = ", ".join(f"{name} = {value}" for name, value in options.items())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE semel_records RESET ({', '.join(HOLDING)})".encode())
        if given:
            connection.execute(f"ALTER TABLE semel_records SET ({given})".encode())


def reset(url: str) -> None:
    """Forget the keys that a round has added: a thousand are to stay a thousand."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM semel_records WHERE owner <> %s", (OWNER,))
        connection.execute("VACUUM semel_records")


def relations(url: str) -> dict[str, int]:
    found: dict[str, int] = {}
    with psycopg.connect(url) as connection:
        for name, size in connection.execute(RELATIONS).fetchall():
            found[name] = found.get(name, 0) + size
    return found


def bytes_of(url: str, count: int, when: str) -> list[Found]:
    sizes = relations(url)
    parts = {**sizes, "all": sum(sizes.values())}
    return [
        measured(f"{when}, {name}", SEMEL, "postgres", count, BYTES, [size / count]) for name, size in parts.items()
    ]


async def beside_few(few: str, many: str, size: Size) -> list[Found]:
    """The same calls on a thousand keys and on very many, in turns."""
    counts = {FEW: open_async_store(few), size.many: open_async_store(many)}
    found = list[Found]()

    async def busy(once: Once) -> float:
        reset(few)
        return await per_second(once, TOGETHER, size.round_s)

    for case in ("first", "replay"):
        calls = {count: call_of(case, store, count) for count, store in counts.items()}
        reset(few)
        lone = await aalternate({count: partial(each_us, once, size.samples) for count, once in calls.items()}, 3)
        rates = await aalternate({count: partial(busy, once) for count, once in calls.items()}, size.rounds)
        for count in counts:
            middles = [quantiles(values, n=2)[0] for values in lone[count]]
            found.append(measured(f"{case}, lone", SEMEL, "postgres", count, P50, middles))
            found.append(measured(f"{case}, {TOGETHER} callers", SEMEL, "postgres", count, PER_SECOND, rates[count]))
    for store in counts.values():
        await store.close()
    return found


def call_of(case: str, store: AsyncStore, count: int) -> Once:
    async def first() -> None:
        await pair(store)

    async def known() -> None:
        await replay(store, filled(random.randrange(count // 2, count)))

    return first if case == "first" else known


@dataclass(slots=True)
class Turnover:
    """Live traffic at a steady rate, a purge that follows it, and what the table looks like meanwhile."""

    store: AsyncStore
    url: str
    rate: float
    seconds: float
    added: int = 0
    purged: int = 0
    waited_us: list[float] = field(default_factory=list)
    batch_ms: list[float] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)

    async def run(self) -> None:
        started = time.perf_counter()
        watch = asyncio.create_task(self.watch())
        purge = asyncio.create_task(self.purge())
        await asyncio.gather(*(self.add(started) for _ in range(TOGETHER)))
        for task in (watch, purge):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self.sample()

    async def add(self, started: float) -> None:
        """One of the callers; together they keep to the rate."""
        while (elapsed := time.perf_counter() - started) < self.seconds:
            if self.added >= elapsed * self.rate:
                await asyncio.sleep(0.005)
                continue
            self.added += 1
            self.waited_us += await each_us(partial(pair, self.store), 1)

    async def purge(self) -> None:
        while True:
            if self.added - self.purged < BATCH:
                await asyncio.sleep(0.01)
                continue
            began = time.perf_counter()
            self.purged += await self.store.purge(limit=BATCH)
            self.batch_ms.append((time.perf_counter() - began) * 1000)

    async def watch(self) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(self.seconds / 24)

    async def sample(self) -> None:
        self.samples.append(await asyncio.to_thread(self.look))
        if len(self.samples) > 1:
            self.samples[-1] |= {"live p99": tail(self.waited_us), "purge p50": middle(self.batch_ms)}
            print("      ", {name: round(value, 1) for name, value in self.samples[-1].items()}, flush=True)
        self.waited_us, self.batch_ms = [], []

    def look(self) -> dict[str, float]:
        sizes = relations(self.url)
        with psycopg.connect(self.url) as connection:
            [(dead, vacuums, analyzed)] = connection.execute(UPKEEP).fetchall()
        counted = {"dead": dead, "vacuums": vacuums, "analyzes": analyzed, "added": self.added, "purged": self.purged}
        return {"all": float(sum(sizes.values())), **{name: float(size) for name, size in (sizes | counted).items()}}


def tail(values_us: list[float]) -> float:
    return quantiles(values_us, n=100)[98] / 1000 if len(values_us) > 1 else 0


def middle(values_ms: list[float]) -> float:
    return quantiles(values_ms, n=2)[0] if len(values_ms) > 1 else 0


async def turned_over(name: str, url: str, size: Size) -> list[Found]:
    with ExitStack() as stack:
        if name == HELD_BACK:
            held = stack.enter_context(psycopg.connect(url))
            held.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            held.execute("SELECT 1")
        store = open_async_store(url)
        seconds = size.turnover_s / (3 if name == HELD_BACK else 1)
        turnover = Turnover(store, url, size.turnover_rate, seconds)
        await turnover.run()
        await store.close()
    found = list[Found]()
    for what in ("all", "semel_records", "semel_records_pkey", "semel_records_expires"):
        sizes = [sample[what] / size.many for sample in turnover.samples]
        found.append(measured(f"{name}, {what}", SEMEL, "postgres", size.many, BYTES, sizes))
    for what, unit in (("dead", "rows"), ("vacuums", "times"), ("analyzes", "times"), ("added", "rows")):
        counted = [sample[what] for sample in turnover.samples]
        found.append(measured(f"{name}, {what}", SEMEL, "postgres", size.many, unit, counted))
    for what in ("live p99", "purge p50"):
        spent = [sample[what] for sample in turnover.samples[1:]]
        found.append(measured(f"{name}, {what}", SEMEL, "postgres", size.many, MILLISECONDS, spent))
    return found
