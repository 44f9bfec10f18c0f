"""Forks, event loops and waiting across processes."""

import asyncio
import faulthandler
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from semel import Acquired, Key, Lease, Result
from semel.stores.sqlite.aio import AsyncSqliteStore
from semel.stores.sqlite.settings import SqliteSettings
from semel.stores.sqlite.store import SqliteStore

DAY_MS = 86_400_000
ANSWER = Result("x", b"answer")


def claim(store: SqliteStore, name: str) -> Lease:
    claimed = store.claim(Key("t", "s", name), "f", owner="o", lease_ms=30_000, retention_ms=DAY_MS, takeover=False)
    assert isinstance(claimed, Acquired)
    return claimed.lease


async def aclaim(store: AsyncSqliteStore, name: str) -> Lease:
    claimed = await store.claim(
        Key("t", "s", name), "f", owner="o", lease_ms=30_000, retention_ms=DAY_MS, takeover=False
    )
    assert isinstance(claimed, Acquired)
    return claimed.lease


PATIENCE_S = 60.0


def in_child(work: Callable[[], object]) -> ForkProcess:
    def watched() -> None:
        faulthandler.dump_traceback_later(PATIENCE_S - 10, exit=True, file=2)  # a child that hangs says where
        work()

    process = multiprocessing.get_context("fork").Process(target=watched)
    process.start()
    return process


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.db")


def test_a_child_s_acknowledged_records_outlive_the_parent_s_close(path: str) -> None:
    """The trap of SQLite and fork: the parent, closing, takes the child's write-ahead log away."""
    store = SqliteStore(path)
    claim(store, "parent's")
    told_parent, told_child = os.pipe(), os.pipe()

    def child() -> None:
        claim(store, "child's first")
        os.write(told_parent[1], b"!")
        os.read(told_child[0], 1)
        for number in range(20):
            assert store.complete(claim(store, f"child's {number}"), ANSWER, retention_ms=DAY_MS)
        os.kill(os.getpid(), 9)

    process = in_child(child)
    os.read(told_parent[0], 1)
    claim(store, "parent's second")
    store.close()
    os.write(told_child[1], b"!")
    process.join()
    counts = SqliteStore(path).counts()
    assert (counts.in_progress, counts.succeeded) == (3, 20)


def test_forks_while_other_threads_write(path: str) -> None:
    """In a process of its own, where all threads are the store's users: a fork copies the locks of all others, too."""
    process = multiprocessing.get_context("spawn").Process(target=fork_while_other_threads_write, args=[path])
    process.start()
    process.join(2 * PATIENCE_S)
    assert process.exitcode == 0


def fork_while_other_threads_write(path: str) -> None:
    store = SqliteStore(SqliteSettings(path, busy_timeout_ms=30_000))  # four threads leave a newcomer few gaps
    stop = threading.Event()
    written: list[str] = []

    def write(thread: int) -> None:
        number = 0
        while not stop.is_set():
            name = f"{thread}-{number}"
            assert store.complete(claim(store, name), ANSWER, retention_ms=DAY_MS)
            written.append(name)
            number += 1

    threads = [threading.Thread(target=write, args=[thread]) for thread in range(4)]
    for thread in threads:
        thread.start()
    for number in range(5):
        process = in_child(partial(claim, store, f"child's {number}"))
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert written
    assert store.counts().succeeded == len(written)
    assert store.counts().in_progress == 5


def test_an_async_store_in_a_forked_child(path: str) -> None:
    store = AsyncSqliteStore(path)
    asyncio.run(aclaim(store, "parent's"))
    parents = store._opened

    def child() -> None:
        asyncio.run(aclaim(store, "child's"))
        assert store._opened is not parents

    process = in_child(child)
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    asyncio.run(aclaim(store, "parent's second"))
    assert SqliteStore(path).counts().in_progress == 3


def test_an_async_store_in_two_successive_loops_and_after_close(path: str) -> None:
    store = AsyncSqliteStore(path)

    async def use(name: str, *, close: bool) -> None:
        lease = await aclaim(store, name)
        assert await store.complete(lease, ANSWER, retention_ms=DAY_MS)
        if close:
            await store.close()

    asyncio.run(use("first", close=False))
    asyncio.run(use("second", close=True))
    asyncio.run(use("third", close=True))
    assert SqliteStore(path).counts().succeeded == 3


def test_many_processes_begin_a_new_file_at_once(tmp_path: Path) -> None:
    """Creating the file, its mode, the schema and the first claim: one does each, and nobody fails."""
    context = multiprocessing.get_context("fork")
    for number in range(10):
        barrier, granted = context.Barrier(6), context.Value("i", 0)

        def begin(owner: str, path: str = str(tmp_path / f"{number}.db")) -> None:
            barrier.wait(10)  # noqa: B023
            claimed = SqliteStore(path).claim(
                Key("t", "s", "key"), "f", owner=owner, lease_ms=30_000, retention_ms=DAY_MS, takeover=False
            )
            if isinstance(claimed, Acquired):
                with granted.get_lock():  # noqa: B023
                    granted.value += 1  # noqa: B023

        processes = [in_child(partial(begin, f"owner {n}")) for n in range(6)]
        for process in processes:
            process.join(20)
        assert [process.exitcode for process in processes] == [0] * 6
        assert granted.value == 1


COMPLETE = """
import sys
from semel import Key, Lease, Result
from semel.stores.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
store.counts()
print("ready", flush=True)
sys.stdin.readline()
assert store.complete(Lease(Key("t", "s", "key"), "o", 1, 0), Result("x", b""), retention_ms=99_000)
sys.stdin.readline()
"""


class Other:
    """Another process, which completes the key when it is told to."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", COMPLETE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def complete(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


def test_a_thread_is_woken_by_another_process(path: str) -> None:
    store = SqliteStore(path)
    lease = claim(store, "key")
    other = Other(path)
    assert store.wait(lease.key, owner="o", timeout_ms=30) is False
    threading.Timer(0.03, other.complete).start()
    assert store.wait(lease.key, owner="o", timeout_ms=20_000) is True
    record = store.get(lease.key)
    assert record is not None
    assert record.result is not None
    other.end()


def test_a_task_is_woken_by_another_process(path: str) -> None:
    async def main() -> None:
        async with AsyncSqliteStore(path) as store:
            lease = await aclaim(store, "key")
            other = Other(path)
            assert await store.wait(lease.key, owner="o", timeout_ms=30) is False
            asyncio.get_running_loop().call_later(0.03, other.complete)
            assert await store.wait(lease.key, owner="o", timeout_ms=20_000) is True
            other.end()

    asyncio.run(main())


def test_waiters_are_not_woken_by_other_keys(path: str) -> None:
    store, other = SqliteStore(path), SqliteStore(path)
    lease = claim(store, "key")
    stop = threading.Event()

    def bustle() -> None:
        number = 0
        while not stop.is_set():
            claim(other, f"other {number}")
            number += 1

    busy = threading.Thread(target=bustle)
    busy.start()
    assert store.wait(lease.key, owner="o", timeout_ms=50) is False
    stop.set()
    busy.join()


def test_the_watching_thread_ends_when_nobody_waits(path: str) -> None:
    store = SqliteStore(path)
    lease = claim(store, "key")
    for _ in range(2):
        store.wait(lease.key, owner="o", timeout_ms=1)
        deadline = time.monotonic() + 30
        while store._database.get().watch._thread is not None:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_closing_wakes_those_who_wait(path: str) -> None:
    store = SqliteStore(path)
    lease = claim(store, "key")
    watch = store._database.get().watch

    def close_when_somebody_waits() -> None:
        while not watch._waiters:
            time.sleep(0.001)
        store.close()

    threading.Thread(target=close_when_somebody_waits).start()
    assert store.wait(lease.key, owner="o", timeout_ms=20_000) is True


def test_waiting_on_a_store_that_fails_is_waking_early(tmp_path: Path) -> None:
    key = Key("t", "s", "key")
    assert SqliteStore(str(tmp_path)).wait(key, owner="o", timeout_ms=20_000) is True
    assert asyncio.run(AsyncSqliteStore(str(tmp_path)).wait(key, owner="o", timeout_ms=20_000)) is True
