"""A disk with a slow fsync (a millisecond more, by a shim): where one commit for many callers pays most.

`python -m benchmarks.slow_disk FILE SECONDS ROUNDS` is the part that runs under the shim, for SQLite.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import uvloop

from benchmarks import raw
from benchmarks.apps import SEMEL
from benchmarks.at_store import PYTHON
from benchmarks.calls import pair, per_second
from benchmarks.places import Places, migrate
from benchmarks.results import PER_SECOND, Found, Note
from benchmarks.rounds import aalternate, measured
from benchmarks.serving import ROOT
from benchmarks.sizes import Size
from semel import open_async_store
from servers.postgres import PostgresServer

CALLERS = 64
SOURCE = Path(__file__).with_name("slow_fsync.c")
Rates = dict[str, list[float]]


class SlowPostgres(PostgresServer):
    """PostgreSQL on such a disk."""

    def __init__(self, shim: Path, *settings: str) -> None:
        super().__init__(*settings)
        self._shim = shim

    def command(self) -> Sequence[str | Path]:
        return ["env", f"LD_PRELOAD={self._shim}", *super().command()]


def measure(size: Size, places: Places) -> Iterator[Found]:
    if shutil.which("gcc") is None:
        yield Note("slow disk", "not measured: there is no gcc to compile the shim")
        return
    with tempfile.TemporaryDirectory(prefix="semel-shim-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL is another user
        shim = folder / "slow_fsync.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", shim, SOURCE, "-ldl"], check=True)
        yield from told("sqlite", sqlite(shim, places.fresh_file(), size))
        with SlowPostgres(shim) as server:
            migrate(server.url)
            yield from told("postgres", uvloop.run(postgres(server.url, size)))


def told(store: str, rates: Rates) -> Iterator[Found]:
    for who, values in rates.items():
        yield measured("first, fsync of 1 ms", who, store, CALLERS, PER_SECOND, values)


def sqlite(shim: Path, path: Path, size: Size) -> Rates:
    words = [sys.executable, "-m", "benchmarks.slow_disk", str(path), str(size.round_s), str(size.rounds)]
    shimmed = os.environ | {"LD_PRELOAD": str(shim)}
    done = subprocess.run(words, env=shimmed, capture_output=True, text=True, check=True, cwd=ROOT)
    rates: Rates = json.loads(done.stdout)
    return rates


async def postgres(url: str, size: Size) -> Rates:
    async with AsyncExitStack() as stack:
        once = await stack.enter_async_context(raw.python_postgres(url))
        return await compared(url, once, size.round_s, size.rounds, stack)


async def sqlite_here(path: Path, seconds: float, rounds: int) -> Rates:
    async with AsyncExitStack() as stack:
        url = f"sqlite:///{path}?synchronous=full"
        store = open_async_store(url)
        await pair(store)  # makes the tables
        await store.close()
        once = await stack.enter_async_context(raw.python_sqlite(path, synchronous="full"))
        return await compared(url, once, seconds, rounds, stack)


async def compared(
    url: str, once: Callable[[], Awaitable[None]], seconds: float, rounds: int, stack: AsyncExitStack
) -> Rates:
    store = open_async_store(url)
    stack.push_async_callback(store.close)
    return await aalternate(
        {
            SEMEL: partial(per_second, partial(pair, store), CALLERS, seconds),
            PYTHON: partial(per_second, once, CALLERS, seconds),
        },
        rounds,
    )


if __name__ == "__main__":
    print(json.dumps(uvloop.run(sqlite_here(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))))
