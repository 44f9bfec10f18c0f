"""Transactions that are in each other's way: scenarios for any mode, which tell in plain data what became of each.

Run as `python -m transaction.scenarios POSTGRES SQLITE MARIADB`, it plays them in a Django project, which a process has
only one of: each line that it reads is one scenario as JSON, and each line that it writes is what that told.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import psycopg

from semel.transaction import arun, run, within
from transaction.modes import DJANGO, Mode, is_mariadb, mariadb_rows, path_of
from waiting import until

T = TypeVar("T")
Told = int | str
PATIENCE_S = 30.0
HASTE_S = 0.02
CONTENDED = "UPDATE effects SET name = 'contended' WHERE id = -1"


def twins(mode: Mode, url: str, level: str, key: str, *, end: str = "", **options: Any) -> list[Told]:
    """Two calls of `run`. The first ends (raises, if `end` says so) when the second waits for it."""
    entered, followed = threading.Event(), threading.Event()

    def call(number: int) -> Told:
        async def work(connection: Any) -> int:
            await given(mode.write(connection, key))
            if number == 1:
                if mode.name.endswith("session"):
                    await given(connection.flush())
                entered.set()
                assert followed.wait(PATIENCE_S)
                until_somebody_waits(url)
                if end == "raise":
                    raise ArithmeticError("on purpose")
            return number

        return told(lambda: _run(mode, url, level, key, work, **options))

    with ThreadPoolExecutor(2) as pool:
        first: Future[Told] = pool.submit(call, 1)
        first.add_done_callback(lambda _: entered.set())
        assert entered.wait(PATIENCE_S)
        assert not first.done(), first.result()
        second = pool.submit(call, 2)
        followed.set()
        return [first.result(PATIENCE_S), second.result(PATIENCE_S)]


def ended(mode: Mode, url: str, level: str, key: str, *, end: str) -> Told:
    """A block whose transaction is ended inside of it, by a `commit` or a `rollback`; or not."""

    async def play() -> str:
        async with begun(mode, url, level) as connection, _block(mode, connection, key) as op:
            if not op.replayed:
                await given(mode.write(connection, key))
                if end:
                    await given(mode.end(connection, end))
        return "ran"

    return told(lambda: finished(mode, play()))


def deadlock(mode: Mode, url: str, level: str, key: str) -> list[Told]:
    """Two transactions with the same two keys, in different orders."""
    barrier = threading.Barrier(2)

    async def both(one: str, other: str) -> str:
        async with begun(mode, url, level) as connection, _block(mode, connection, f"{key}.{one}") as op:
            assert not op.replayed
            barrier.wait(PATIENCE_S)
            async with _block(mode, connection, f"{key}.{other}") as inner:
                assert not inner.replayed
                await given(mode.write(connection, key))
        return "ran"

    def call(one: str, other: str) -> Told:
        return told(lambda: finished(mode, both(one, other)))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(call, ("one", "other"), ("other", "one")))


def outrun(mode: Mode, url: str, level: str, key: str, **options: Any) -> Told:
    """The work changes a row that somebody else has changed since it began: the first time, not when it runs again."""
    tries: list[int] = []
    with _elsewhere(url) as execute:
        execute("DELETE FROM effects WHERE id = -1")
        execute("INSERT INTO effects (id, name) VALUES (-1, 'contended')")

        async def work(connection: Any) -> int:
            tries.append(1)
            if len(tries) == 1:
                execute(CONTENDED)
            await given(mode.execute(connection, CONTENDED))
            await given(mode.write(connection, key))
            return len(tries)

        return told(lambda: _run(mode, url, level, key, work, **options))


@contextmanager
def _elsewhere(url: str) -> Iterator[Callable[[str], object]]:
    """A statement at a time on a connection of somebody else, each committed at once."""
    if is_mariadb(url):
        yield lambda sql: mariadb_rows(url, sql)
    else:
        with psycopg.connect(url, autocommit=True) as other:
            yield lambda sql: other.execute(sql.encode())


def locked(mode: Mode, url: str, level: str, key: str) -> list[Told]:
    """On SQLite: somebody else has the turn to write, for longer than is waited for; then not any more."""

    async def work(connection: Any) -> int:
        await given(mode.write(connection, key))
        return 1

    def call() -> Told:
        return told(lambda: _run(mode, url, level, key, work, wait=HASTE_S, tries_max=1))

    other = sqlite3.connect(path_of(url), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    said = [call()]
    other.close()
    return [*said, call()]


def too_early(mode: Mode, url: str, level: str, key: str) -> Told:
    """On SQLite: the transaction has read something before its block, and somebody else has written since."""

    async def play() -> str:
        async with begun(mode, url, level) as connection:
            read = await given(mode.execute(connection, "SELECT count(*) FROM effects"))
            if read is not None:
                await given(read.fetchall())
            _write_elsewhere(url, f"{key}.in between")
            async with _block(mode, connection, key) as op:
                assert not op.replayed
                await given(mode.write(connection, key))
        return "ran"

    return told(lambda: finished(mode, play()))


def told(act: Callable[[], T]) -> T | str:
    """What it gives, or its error in words."""
    try:
        return act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _run(
    mode: Mode, url: str, level: str, key: str, work: Callable[[Any], Coroutine[Any, Any, T]], **options: Any
) -> T:
    begin = mode.opener(url, level)
    if mode.is_async:
        return asyncio.run(arun(begin, key, work, scope="operation", **options))
    return run(begin, key, lambda connection: finished(mode, work(connection)), scope="operation", **options)


def finished(mode: Mode, coroutine: Coroutine[Any, Any, T]) -> T:
    """For sync modes nothing in it is ever waited for, and there must be no loop: Django refuses to work in one."""
    if mode.is_async:
        return asyncio.run(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise TypeError(f"{mode.name} is sync, and something was awaited")


async def given(value: Awaitable[T] | T) -> T:
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def begun(mode: Mode, url: str, level: str) -> AsyncIterator[Any]:
    if mode.is_async:
        async with mode.begin(url, level) as connection:
            yield connection
    else:
        with mode.begin(url, level) as connection:
            yield connection


@asynccontextmanager
async def _block(mode: Mode, connection: Any, key: str) -> AsyncIterator[Any]:
    block = within(connection).operation(key, scope="operation")
    if mode.is_async:
        async with block as op:
            yield op
    else:
        with block as op:
            yield op


def until_somebody_waits(url: str) -> None:
    """On SQLite nobody can tell: the twin has a moment to get there, and it makes no difference if it does not."""
    if url.startswith("sqlite"):
        time.sleep(0.01)
        return
    if is_mariadb(url):
        waits = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
        until(lambda: int(mariadb_rows(url, waits)[0][1]), "the twin never waited")
        return
    sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    deadline = time.monotonic() + PATIENCE_S
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(sql).fetchone() is None:
            assert time.monotonic() < deadline, "the twin never waited"
            time.sleep(0.01)


def _write_elsewhere(url: str, name: str) -> None:
    other = sqlite3.connect(path_of(url))
    with other:
        other.execute("INSERT INTO effects (name) VALUES (?)", [name])
    other.close()


SCENARIOS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (twins, ended, deadlock, outrun, locked, too_early)
}


def main(postgres: str, sqlite: str, mariadb: str) -> None:
    from transaction.message_scenarios import MESSAGE_SCENARIOS
    from transaction.victims import configure

    configure(postgres, sqlite, mariadb)
    urls = {"postgres": postgres, "sqlite": sqlite, "mariadb": mariadb}
    scenarios = SCENARIOS | MESSAGE_SCENARIOS
    modes = {mode.name: (mode, urls[mode.database]) for mode in DJANGO}
    for line in sys.stdin:
        scenario, name, level, key, options = json.loads(line)
        try:
            said: Any = {"told": scenarios[scenario](*modes[name], level, key, **options)}
        except BaseException:
            said = {"failed": traceback.format_exc()}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
