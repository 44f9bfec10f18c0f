"""Why the PostgreSQL store is made as it is: `python -m benchmarks.postgres`.

- psycopg against asyncpg under the same scripts and the same coalescing, prepared (straight to the server) and not (as
  behind a pooler). Rounds alternate, medians are compared. Processor time means something on a busy machine, too.
- The same connections from an empty table to many rows: a plan made when there was nothing must hold for a million.
- A lone caller's claim, completion and replay.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import asyncpg
import psutil
import psycopg

from semel import Key
from semel.core.effects import Claim, Complete, Effect
from semel.core.records import Acquired, Result
from semel.drive import adrive
from semel.stores.coalesced import CoalescedFace
from semel.stores.postgres import AsyncPostgresStore, PostgresStore, Settings
from semel.stores.postgres.connect import direct
from semel.stores.postgres.scripts import Scripts
from semel.stores.sql.statements import Rows, Statement
from semel.stores.url import StoreUrl
from servers.postgres import PostgresServer

CALLERS = (1, 16, 64, 256)
ROUNDS, ROUND_S = 5, 0.7
ANSWER = Result("bench", b"x" * 200)
GROWTH_ROWS = (0, 1_000, 10_000, 100_000, 1_000_000)
FILL = """INSERT INTO semel_records
SELECT 'filled', 'POST /payments', md5(n::text), '1.same', 1, 'a', 1, 0, 0, 4102444800000, 0, 'bench',
    repeat('x', 200)::bytea
FROM generate_series(%s::bigint + 1, %s::bigint) n"""


class AsyncpgStore(CoalescedFace):
    """The same scripts on asyncpg."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings, self._scripts, self._idle = settings, Scripts(), list[Any]()

    async def _send(self, calls: Sequence[Any]) -> Sequence[Any]:
        connection = self._idle.pop() if self._idle else await self._connect()

        async def perform(statement: Effect[Any]) -> Rows:
            assert isinstance(statement, Statement)
            return [tuple(row) for row in await connection.fetch(statement.sql, *statement.params)]

        replies: Sequence[Any] = await adrive(self._scripts.answer(calls, None), perform)
        self._idle.append(connection)
        return replies

    async def _connect(self) -> Any:
        dsn = self._settings.conninfo.partition("?")[0]
        connection = await asyncpg.connect(dsn, statement_cache_size=100 if self._settings.prepare else 0)
        if self._settings.prepare:
            assert await connection.fetchval(direct(self._settings), connection.get_server_pid())
        return connection

    async def purge(self, *, limit: int) -> int:
        raise NotImplementedError

    async def close(self) -> None:
        await self._drain()
        for connection in self._idle:
            await connection.close()


async def pairs(store: CoalescedFace, callers: int, *, seconds: float = ROUND_S) -> int:
    """How many claim + complete pairs `callers` tasks get through, each with a key of its own."""
    done, end = 0, time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end:
            key = Key("bench", "POST /payments", secrets.token_hex(16))
            claimed = await store._call(Claim(key, "1.same", secrets.token_urlsafe(16), 30_000, 3_600_000, False))
            assert isinstance(claimed, Acquired)
            assert await store._call(Complete(claimed.lease, ANSWER, 3_600_000))
            done += 1

    await asyncio.gather(*(caller() for _ in range(callers)))
    return done


async def drivers(url: str) -> None:
    kinds: dict[str, CoalescedFace] = {}
    for prepare in (True, False):
        settings = Settings.of(StoreUrl.parse(f"{url}?prepare={prepare}"))
        mode = "prepared" if prepare else "not prepared"
        kinds[f"psycopg, {mode}"] = AsyncPostgresStore(settings)
        kinds[f"asyncpg, {mode}"] = AsyncpgStore(settings)
    print(f"{'callers':>8}  {'driver':<24}{'pairs/s':>10}{'client µs/pair':>16}{'x psycopg':>11}")
    for callers in CALLERS:
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        costs: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(ROUNDS + 1):
            for kind, store in kinds.items():
                started, cpu = time.perf_counter(), time.process_time()
                done = await pairs(store, callers)
                if number:  # the first round warms up
                    rates[kind].append(done / (time.perf_counter() - started))
                    costs[kind].append((time.process_time() - cpu) / done * 1e6)
        for kind in kinds:
            ratio = median(rates[kind]) / median(rates["psycopg" + kind[7:]])
            print(
                f"{callers:>8}  {kind:<24}{median(rates[kind]):>10,.0f}{median(costs[kind]):>16.0f}{ratio:>11.2f}",
                flush=True,
            )
    for store in kinds.values():
        await store.close()


async def growth(url: str, prepare: bool) -> None:
    """64 callers on a table that VACUUM saw empty and that is never analysed again: nothing corrects a plan."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE semel_records")
        connection.execute("ALTER TABLE semel_records SET (autovacuum_enabled = off)")
        connection.execute("VACUUM ANALYZE semel_records")
        store = AsyncPostgresStore(Settings.of(StoreUrl.parse(f"{url}?prepare={prepare}")))
        before = 0
        for rows in GROWTH_ROWS:
            connection.execute(FILL, [before, rows])
            await pairs(store, 64)
            cpu, server, started = time.process_time(), server_cpu(), time.perf_counter()
            done = await pairs(store, 64, seconds=3.0)
            rate = done / (time.perf_counter() - started)
            client, behind = (time.process_time() - cpu) / done * 1e6, (server_cpu() - server) / done * 1e6
            print(
                f"{rows:>10,} rows {rate:>8,.0f} pairs/s, client {client:4.0f} µs, server {behind:4.0f} µs per pair",
                flush=True,
            )
            before = rows
        await store.close()


def server_cpu() -> float:
    """Processor time of all PostgreSQL processes that are our children."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def lone(url: str, prepare: bool) -> None:
    with PostgresStore(Settings.of(StoreUrl.parse(f"{url}?prepare={prepare}"))) as store:
        spent: dict[str, list[float]] = {"claim": [], "complete": [], "replay": []}
        for _ in range(500):
            key = Key("lone", "POST /payments", secrets.token_hex(16))
            times = [time.perf_counter()]
            lease = store.claim(key, "1.same", owner="a", lease_ms=30_000, retention_ms=60_000, takeover=False).lease  # type: ignore[union-attr]
            times.append(time.perf_counter())
            store.complete(lease, ANSWER, retention_ms=60_000)
            times.append(time.perf_counter())
            store.claim(key, "1.same", owner="b", lease_ms=30_000, retention_ms=60_000, takeover=False)
            times.append(time.perf_counter())
            for name, begin, end in zip(spent, times, times[1:], strict=False):
                spent[name].append((end - begin) * 1e6)
    print(
        f"prepare={prepare}: " + ", ".join(f"{name} {median(values):.0f} µs" for name, values in spent.items()),
        flush=True,
    )


def main(wanted: Sequence[str]) -> None:
    with PostgresServer() as server:
        with PostgresStore(Settings.of(StoreUrl.parse(server.url))) as store:
            store.migrate()
        if "drivers" in wanted:
            asyncio.run(drivers(server.url))
        if "lone" in wanted:
            lone(server.url, prepare=True)
            lone(server.url, prepare=False)
        if "growth" in wanted:
            for prepare in (True, False):
                print(f"growth from an empty table, prepare={prepare}")
                asyncio.run(growth(server.url, prepare))


if __name__ == "__main__":
    main(sys.argv[1:] or ("drivers", "lone", "growth"))
