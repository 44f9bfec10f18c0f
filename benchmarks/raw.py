"""The raw limit of a store: the same two steps with nothing around them, each committed by itself.

From C with pgbench and redis-benchmark, from Python with the fastest driver there is.
"""

from __future__ import annotations

import asyncio
import csv
import re
import secrets
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import redis.asyncio

from benchmarks.calls import ANSWER, FINGERPRINT, SCOPE, TENANT
from semel.stores.sql.digests import SIZE
from servers import binaries

COLUMNS = "digest, tenant, scope, name, fingerprint, state, owner, attempt, created_ms, lease_until_ms, expires_ms"
INSERT = f"INSERT INTO semel_records ({COLUMNS}) VALUES ({{0}}) ON CONFLICT DO NOTHING RETURNING 1"
UPDATE = """UPDATE semel_records SET state = 1, lease_until_ms = 2, format = 'http.1', payload = {2}
    WHERE digest = {0} AND owner = {1} AND state = 0"""
NOW_MS, LATER_MS = 1_795_000_000_000, 4_102_444_800_000
Raw = AbstractAsyncContextManager[Callable[[], Awaitable[None]]]
POOL = 10  # as many connections as the store has by default
ROW = f"{{0}}, '{TENANT}', '{SCOPE}', {{1}}, '{FINGERPRINT}', 0, {{2}}, 1, {NOW_MS}, {LATER_MS}, {LATER_MS}"
NAME, OWNER, PAYLOAD = "md5(:n::text)", ":n::text", "decode(repeat('78', 200), 'hex')"
DIGEST = f"substr(decode({NAME}, 'hex'), 1, {SIZE})"
PGBENCH = f"""\\set n random(1, 9223372036854775806)
{INSERT.format(ROW.format(DIGEST, NAME, OWNER)).replace(chr(10), " ")};
{UPDATE.format(DIGEST, OWNER, PAYLOAD).replace(chr(10), " ")};
"""


def pgbench(url: str, callers: int, seconds: float) -> float:
    """Pairs of an insert and an update, each committed by itself, through prepared statements."""
    program = binaries.require("postgres").with_name("pgbench")
    if not program.exists():
        raise binaries.MissingServer("no program pgbench beside this PostgreSQL")
    count = max(2, int(8_000 * seconds / callers))  # a time would have to last for the connecting, too
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(PGBENCH)
        script.flush()
        words = ["-n", "-M", "prepared", "-c", str(callers), "-j", str(min(callers, 2)), "-t", str(count)]
        command = [str(program), *words, "-f", script.name, url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    if found is None:
        raise RuntimeError(f"pgbench: {done.stderr}")
    return float(found[1])


def redis_benchmark(url: str, callers: int, seconds: float) -> float:
    """Pairs of SET NX and SET XX with a 200-byte value: half of the commands that it gets through."""
    program = shutil.which("redis-benchmark")
    if program is None:
        raise binaries.MissingServer("no program redis-benchmark on this machine")
    count = max(100, int(30_000 * seconds))
    place = ["-p", str(urlsplit(url).port), "-c", str(callers), "-n", str(count), "-r", "1000000000", "--csv"]
    rates = []
    for how in ("NX", "XX"):
        command = [program, *place, "SET", "bench:__rand_int__", "x" * 200, how, "PX", "86400000"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = list(csv.DictReader(done.stdout.splitlines()))[-1]
        rates.append(float(row["rps"]))
    return 1 / sum(1 / rate for rate in rates)


@asynccontextmanager
async def python_postgres(url: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """asyncpg, one statement for each step, over as many connections as the store has."""
    insert = INSERT.format(ROW.format("$1", "$2", "$3"))
    update = UPDATE.format("$1", "$2", "$3")
    async with asyncpg.create_pool(url, min_size=POOL, max_size=POOL) as pool:

        async def once() -> None:
            digest, name, owner = secrets.token_bytes(SIZE), secrets.token_hex(16), secrets.token_urlsafe(16)
            assert await pool.fetchval(insert, digest, name, owner) == 1
            assert await pool.execute(update, digest, owner, ANSWER.payload) == "UPDATE 1"

        yield once


@asynccontextmanager
async def python_redis(url: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """redis-py with hiredis, one command for each step."""
    async with redis.asyncio.Redis.from_url(url, max_connections=1_000) as client:

        async def once() -> None:
            name = f"raw:{secrets.token_hex(16)}"
            assert await client.set(name, "owner", nx=True, px=86_400_000)
            assert await client.set(name, ANSWER.payload, xx=True, px=86_400_000)

        yield once


@asynccontextmanager
async def python_sqlite(path: Path, *, synchronous: str = "normal") -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """sqlite3, one transaction for each step. There is one writer anyway, so it works in the caller's thread."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    insert = INSERT.format(ROW.format("?", "?", "?"))
    update = UPDATE.format("?2", "?3", "?1")

    async def once() -> None:
        digest, name, owner = secrets.randbits(63), secrets.token_hex(16), secrets.token_urlsafe(16)
        assert connection.execute(insert, (digest, name, owner)).fetchall() == [(1,)]
        assert connection.execute(update, (ANSWER.payload, digest, owner)).rowcount == 1
        await asyncio.sleep(0)

    yield once
    connection.close()
