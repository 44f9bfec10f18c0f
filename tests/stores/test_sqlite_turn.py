"""What the event loop asks the file itself, what it leaves to threads, and that nobody can tell by the answers."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from costs.counting import traced
from semel import Acquired, Key, Lease, Occupied, RecordUnreadable, Result, StoreUnavailable
from semel.core.effects import Claim, Complete
from semel.runtime.clock import wall_ms
from semel.stores.sqlite import log, turn
from semel.stores.sqlite.aio import AsyncSqliteStore
from semel.stores.sqlite.connections import PAGE, Purpose
from semel.stores.sqlite.database import Database
from semel.stores.sqlite.scripts import Purge
from semel.stores.sqlite.settings import SqliteSettings
from semel.stores.sqlite.store import SqliteStore
from semel.stores.sqlite.writer import AT_ONCE_MAX, weight

DAY_MS = 86_400_000
ANSWER = Result("x", b"answer")


class Counted(ThreadPoolExecutor):
    """A thread that counts what it is given."""

    def __init__(self) -> None:
        super().__init__(1)
        self.given = 0

    def submit(self, *args: Any, **options: Any) -> Future[Any]:
        self.given += 1
        return super().submit(*args, **options)


class Watched:
    """A store that is open, and the threads that work for it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.store = AsyncSqliteStore(SqliteSettings(str(path), **settings))
        self.store._pace = turn.FilePace(lambda: 0.0)  # however busy the machine is, no answer is slow
        self.write, self.read = Counted(), Counted()

    async def __aenter__(self) -> "Watched":
        await claim(self.store, "opens the file")
        threads = self.store._threads.get()
        for old in (threads.write, threads.read):
            old.shutdown()
        threads.write, threads.read = self.write, self.read
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()


async def claim(store: AsyncSqliteStore, name: str, owner: str = "o") -> Acquired | Occupied:
    return await store.claim(
        Key("t", "s", name), "f", owner=owner, lease_ms=30_000, retention_ms=DAY_MS, takeover=False
    )


async def granted(store: AsyncSqliteStore, name: str, owner: str = "o") -> Lease:
    claimed = await claim(store, name, owner)
    assert isinstance(claimed, Acquired)
    return claimed.lease


async def whole_life(store: AsyncSqliteStore, name: str) -> None:
    lease = await granted(store, name)
    assert await store.renew(lease, lease_ms=30_000) is not None
    assert await store.complete(lease, ANSWER, retention_ms=DAY_MS)
    replayed = await claim(store, name, "another")
    assert isinstance(replayed, Occupied)
    assert replayed.record.result == ANSWER
    assert await store.get(lease.key) == replayed.record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def test_a_lone_caller_needs_no_thread(path: Path) -> None:
    async def main() -> None:
        async with Watched(path) as watched:
            await whole_life(watched.store, "key")
            assert await watched.store.release(await granted(watched.store, "other"))
            assert (watched.write.given, watched.read.given) == (0, 0)

    asyncio.run(main())


def test_with_full_durability_every_write_is_a_thread_s_and_no_read_is(path: Path) -> None:
    async def main() -> None:
        async with Watched(path, synchronous="full") as watched:
            await whole_life(watched.store, "key")
            assert (watched.write.given, watched.read.given) == (3, 0)

    asyncio.run(main())


def test_tasks_that_call_together_share_a_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = traced(monkeypatch)

    async def main() -> None:
        async with Watched(path) as watched:
            store = watched.store
            leases = await asyncio.gather(*(granted(store, f"warm {n}") for n in range(20)))  # now it is crowded
            statements.clear()
            leases = await asyncio.gather(*(granted(store, f"key {n}") for n in range(20)))
            claiming = statements.count("BEGIN IMMEDIATE")
            replies = await asyncio.gather(*(store.complete(lease, ANSWER, retention_ms=DAY_MS) for lease in leases))
            assert all(replies)
            assert (claiming, statements.count("BEGIN IMMEDIATE")) == (1, 2)
            await whole_life(store, "alone again")
            assert watched.write.given == 0
            now = store._find_turn()
            assert now is not None
            assert not now.crowded

    asyncio.run(main())


def test_replays_take_no_write_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = traced(monkeypatch)

    async def main() -> None:
        async with Watched(path) as watched:
            await whole_life(watched.store, "key")
            statements.clear()
            await asyncio.gather(*(claim(watched.store, "key", f"owner {n}") for n in range(20)))
            await claim(watched.store, "key", "late")
            assert not [
                each for each in statements if not each.startswith("SELECT") and each not in ("BEGIN", "COMMIT")
            ]

    asyncio.run(main())


def test_replays_among_new_claims_take_no_write_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = traced(monkeypatch)

    async def main() -> None:
        async with Watched(path) as watched:
            await whole_life(watched.store, "key")
            await asyncio.gather(*(granted(watched.store, f"new {n}") for n in range(20)))
            statements.clear()  # what comes now is expected to be new, too
            replies = await asyncio.gather(*(claim(watched.store, "key", f"owner {n}") for n in range(20)))
            assert all(isinstance(reply, Occupied) for reply in replies)
            assert "BEGIN IMMEDIATE" not in statements

    asyncio.run(main())


@pytest.mark.parametrize("synchronous", ["normal", "full"])
def test_replays_among_new_claims_wait_for_no_writer(path: Path, synchronous: str) -> None:
    async def main() -> None:
        async with Watched(path, synchronous=synchronous, busy_timeout_ms=20_000) as watched:
            await whole_life(watched.store, "done")
            await asyncio.gather(*(granted(watched.store, f"new {n}") for n in range(20)))
            holder = sqlite3.connect(path, isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            stuck = [asyncio.create_task(granted(watched.store, f"stuck {n}")) for n in range(5)]
            replies = await asyncio.gather(*(claim(watched.store, "done", f"owner {n}") for n in range(5)))
            assert all(isinstance(reply, Occupied) for reply in replies)
            assert not any(task.done() for task in stuck)
            holder.execute("COMMIT")
            assert [lease.attempt for lease in await asyncio.gather(*stuck)] == [1] * 5
            holder.close()

    asyncio.run(main())


def test_each_loop_and_each_opened_file_has_its_own_turn(path: Path) -> None:
    async def crowd(name: str, *, close: bool) -> None:
        await asyncio.gather(*(whole_life(store, f"{name} {n}") for n in range(20)))
        if close:
            await store.close()

    async def opened_again() -> None:
        await granted(store, "key")
        before, store._opened = store._find_turn(), Database(SqliteSettings(str(path)), wall_ms)
        after = store._find_turn()
        assert before is not None
        assert after is not None
        assert after.database is store._opened is not before.database
        before.database.close()
        after.database.close()

    store = AsyncSqliteStore(SqliteSettings(str(path)))
    asyncio.run(crowd("first", close=False))
    asyncio.run(crowd("second", close=True))
    asyncio.run(crowd("third", close=False))
    asyncio.run(opened_again())


def test_a_large_crowd_is_answered_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = traced(monkeypatch)

    async def main() -> None:
        async with Watched(path) as watched:
            await asyncio.gather(*(granted(watched.store, f"warm {n}") for n in range(20)))
            statements.clear()
            await asyncio.gather(*(granted(watched.store, f"key {n}") for n in range(2 * AT_ONCE_MAX + 1)))
            assert (statements.count("BEGIN IMMEDIATE"), watched.write.given) == (3, 0)

    asyncio.run(main())


def test_a_caller_cancelled_before_it_sees_its_grant_gives_the_key_back(path: Path) -> None:
    async def main() -> None:
        async with Watched(path) as watched:
            await asyncio.gather(*(granted(watched.store, f"warm {n}") for n in range(20)))
            tasks = [asyncio.create_task(granted(watched.store, f"key {n}")) for n in range(3)]
            await asyncio.sleep(0)  # they have asked; the answers come in the next pass, and they in the one after it
            await asyncio.sleep(0)
            with SqliteStore(str(path)) as other:  # which lets no task run
                assert other.get(Key("t", "s", "key 1")) is not None
            assert tasks[1].cancel()
            await asyncio.wait(tasks)
            assert [task.cancelled() for task in tasks] == [False, True, False]
        with SqliteStore(str(path)) as store:
            assert [store.get(Key("t", "s", f"key {n}")) is None for n in range(3)] == [False, True, False]

    asyncio.run(main())


def test_who_is_cancelled_before_it_was_asked_is_not_asked_for(path: Path) -> None:
    async def main() -> None:
        async with Watched(path) as watched:
            await asyncio.gather(*(granted(watched.store, f"warm {n}") for n in range(20)))
            tasks = [asyncio.create_task(granted(watched.store, f"key {n}")) for n in range(2)]
            await asyncio.sleep(0)
            for task in tasks:
                assert task.cancel()
            await asyncio.wait(tasks)
            assert await watched.store.get(Key("t", "s", "key 0")) is None
            await whole_life(watched.store, "key 0")

    asyncio.run(main())


@pytest.mark.parametrize("locked", [False, True])
def test_a_store_is_closed_after_what_was_asked_for(path: Path, locked: bool) -> None:
    async def main() -> None:
        async with Watched(path, busy_timeout_ms=20) as watched:
            await asyncio.gather(*(granted(watched.store, f"warm {n}") for n in range(20)))
            holder = sqlite3.connect(path, isolation_level=None)
            holder.execute("BEGIN IMMEDIATE" if locked else "SELECT 1")
            tasks = [asyncio.create_task(granted(watched.store, f"key {n}")) for n in range(3)]
            await asyncio.sleep(0)
        await asyncio.wait(tasks)
        assert [task.exception() is None for task in tasks] == [not locked] * 3
        assert watched.store._database.take() is None, "whoever came late has opened it again"
        holder.close()

    asyncio.run(main())


def test_a_commit_that_fails_is_asked_for_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a thread, which may wait: one by one, and with the reason if it fails again."""

    async def main() -> None:
        async with Watched(path) as watched:
            await granted(watched.store, "warm")
            writer = watched.store._database.get().writer
            commit, failing = writer._commit, [False, True, False, True]

            def fails(connection: sqlite3.Connection, calls: Any) -> Any:
                if failing.pop():
                    connection.execute("ROLLBACK")
                    raise sqlite3.OperationalError("disk I/O error")
                return commit(connection, calls)

            monkeypatch.setattr(writer, "_commit", fails)
            lease = await granted(watched.store, "key")
            assert await watched.store.complete(lease, ANSWER, retention_ms=DAY_MS)
            assert not failing
            assert watched.write.given == 2
            record = await watched.store.get(lease.key)
            assert record is not None
            assert record.result == ANSWER

    asyncio.run(main())


def test_a_loop_that_ends_in_the_middle_of_a_batch_keeps_nobody_from_writing(path: Path) -> None:
    store = AsyncSqliteStore(SqliteSettings(str(path), synchronous="full"))

    async def left_behind() -> None:
        await granted(store, "opens the file")
        threads = store._threads.get()
        busy = threads.write.submit(time.sleep, 0.05)  # the batch has to wait for its thread
        task = asyncio.create_task(granted(store, "key"))
        while not threads.write._work_queue.qsize():
            await asyncio.sleep(0)
        task.cancel()
        assert not busy.done()

    async def later() -> None:
        async with asyncio.timeout(10):
            await whole_life(store, "another")
        await store.close()

    asyncio.run(left_behind())
    asyncio.run(later())


def test_two_loops_do_not_wait_for_each_other_s_commits(path: Path) -> None:
    store = AsyncSqliteStore(SqliteSettings(str(path), synchronous="full"))

    async def work(name: str) -> None:
        async with asyncio.timeout(20):
            for number in range(50):
                await whole_life(store, f"{name} {number}")

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(asyncio.run, work(name)) for name in ("one", "two")]:
            done.result(30)
    asyncio.run(store.close())


def test_what_no_thread_writes_is_not_there(path: Path) -> None:
    async def main() -> None:
        async with Watched(path, synchronous="full") as watched:
            await granted(watched.store, "warm")
            watched.write.shutdown()
            with pytest.raises(RuntimeError):
                await granted(watched.store, "key")
            assert await watched.store.get(Key("t", "s", "key")) is None
            assert watched.store._database.get().connections._lent == 0
            watched.store._threads.get().write = Counted()
            await whole_life(watched.store, "key")

    asyncio.run(main())


def test_another_writer_is_waited_for_by_a_thread(path: Path) -> None:
    async def main() -> None:
        async with Watched(path, busy_timeout_ms=20_000) as watched:
            await whole_life(watched.store, "done")
            holder = sqlite3.connect(path, isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            stuck = [asyncio.create_task(granted(watched.store, name)) for name in ("one", "two")]
            while not watched.write.given:
                await asyncio.sleep(0)
            replays = await asyncio.gather(*(claim(watched.store, "done", f"owner {n}") for n in range(5)))
            assert all(isinstance(reply, Occupied) for reply in replays)
            assert not any(task.done() for task in stuck)
            holder.execute("COMMIT")
            assert [lease.attempt for lease in await asyncio.gather(*stuck)] == [1, 1]
            holder.close()

    asyncio.run(main())


def test_what_cannot_be_read_at_once_is_read_by_a_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Watched(path, busy_timeout_ms=20_000) as watched:
            connections = watched.store._database.get().connections
            opened = connections.open_new

            def locked(purpose: Purpose) -> sqlite3.Connection:
                if purpose == "at once":
                    raise StoreUnavailable("somebody else is opening the file")
                return opened(purpose)

            monkeypatch.setattr(connections, "open_new", locked)
            await whole_life(watched.store, "key")
            assert watched.read.given
            holder = sqlite3.connect(path, isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            stuck = [asyncio.create_task(granted(watched.store, name)) for name in ("one", "two")]
            await asyncio.sleep(0)
            replays = await asyncio.gather(*(claim(watched.store, "key", f"owner {n}") for n in range(5)))
            assert all(isinstance(reply, Occupied) for reply in replays)
            assert not any(task.done() for task in stuck)
            holder.execute("COMMIT")
            await asyncio.gather(*stuck)
            holder.close()

    asyncio.run(main())


def test_whoever_writes_at_once_does_not_wait_for_the_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "CALLS_MAX", 64)
    monkeypatch.setattr(log, "PAGES_MAX", 512)

    async def main() -> None:
        async with Watched(path) as watched:
            for number in range(650):
                await whole_life(watched.store, f"key {number}")
            assert watched.write.given < 20, "only while all of it is brought back"
            assert os.path.getsize(f"{path}-wal") < 2048 * PAGE, "it has begun anew"
            with watched.store._database.get().connections.lend("at once") as connection:
                assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)

    asyncio.run(main())


def test_what_the_loop_is_refused_is_written_by_a_thread(path: Path) -> None:
    async def main() -> None:
        async with Watched(path) as watched:
            leading = watched.store._database.get().writer._leading
            leading.acquire()
            refused = asyncio.create_task(granted(watched.store, "key"))
            await asyncio.sleep(0.01)
            assert watched.write.given == 1
            leading.release()
            await refused
            await whole_life(watched.store, "another")
            assert watched.write.given == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (Claim(Key("t", "s", "n"), "f", "o", 1, 1, False), 1),
        (Complete(Lease(Key("t", "s", "n"), "o", 1, 0), ANSWER, 1), 1),
        (Complete(Lease(Key("t", "s", "n"), "o", 1, 0), Result("x", bytes(3 * PAGE)), 1), 4),
        (Purge(500), 500),
    ],
)
def test_what_a_call_writes(call: Any, expected: int) -> None:
    assert weight(call) == expected


def test_much_is_written_by_a_thread(path: Path) -> None:
    async def main() -> None:
        async with Watched(path) as watched:
            lease = await granted(watched.store, "key")
            large = Result("x", bytes(AT_ONCE_MAX * PAGE))
            assert await watched.store.complete(lease, large, retention_ms=DAY_MS)
            assert watched.write.given == 1
            assert await watched.store.purge(limit=500) == 0
            assert watched.write.given == 2
            record = await watched.store.get(lease.key)
            assert record is not None
            assert record.result == large

    asyncio.run(main())


def test_a_task_that_never_pauses_lets_others_run(path: Path) -> None:
    async def never_pauses(ask: Callable[[], Awaitable[object]]) -> None:
        while not others_ran:
            await ask()

    async def other() -> None:
        others_ran.append(True)

    async def main() -> None:
        async with Watched(path) as watched:
            lease = await granted(watched.store, "key")
            for ask in (
                lambda: watched.store.get(lease.key),
                lambda: claim(watched.store, "key", "another"),
                lambda: watched.store.renew(lease, lease_ms=30_000),
            ):
                others_ran.clear()
                await asyncio.wait_for(asyncio.gather(never_pauses(ask), other()), 20)

    others_ran: list[bool] = []
    asyncio.run(main())


@pytest.mark.parametrize("synchronous", ["normal", "full"])
def test_a_call_that_fails_fails_alone(path: Path, synchronous: str) -> None:
    async def main() -> None:
        async with Watched(path, synchronous=synchronous) as watched:
            with sqlite3.connect(path) as connection:
                connection.execute(
                    "CREATE TRIGGER refuse BEFORE INSERT ON semel_records WHEN new.name = 'bad' "
                    "BEGIN SELECT raise(ROLLBACK, 'refused'); END"
                )
            with pytest.raises(StoreUnavailable, match="refused"):
                await claim(watched.store, "bad")
            good, bad, also_good = await asyncio.gather(
                *(claim(watched.store, name) for name in ("good", "bad", "also good")), return_exceptions=True
            )
            assert isinstance(good, Acquired)
            assert isinstance(also_good, Acquired)
            assert isinstance(bad, StoreUnavailable)

    asyncio.run(main())


def test_a_record_that_cannot_be_read_is_its_caller_s_affair(path: Path) -> None:
    async def main() -> None:
        async with Watched(path) as watched:
            await granted(watched.store, "strange")
            with sqlite3.connect(path) as connection:
                connection.execute("UPDATE semel_records SET state = 7")
            with pytest.raises(RecordUnreadable):
                await claim(watched.store, "strange", "another")
            assert isinstance(await claim(watched.store, "good"), Acquired)

    asyncio.run(main())


class Disk:
    """A clock that goes on by as much as an answer took."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def answers_in(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_slow_file_is_left_to_threads_for_a_while() -> None:
    disk = Disk()
    pace = turn.FilePace(disk)
    for seconds in (0.0, 2 * turn.SLOW_S, 0.0, 2 * turn.SLOW_S):  # now and then is not slow
        pace.measure(disk.answers_in, seconds)
        assert pace.is_good()
    pace.measure(disk.answers_in, 2 * turn.SLOW_S)
    assert not pace.is_good()
    disk.now_s += turn.REST_S
    assert pace.is_good()
    pace.measure(disk.answers_in, 2 * turn.SLOW_S)
    assert pace.is_good()


def test_threads_answer_the_same_while_the_file_is_slow(path: Path) -> None:
    async def main() -> None:
        async with Watched(path) as watched:
            watched.store._pace.resting, watched.store._pace._good_from_s = True, float("inf")
            await whole_life(watched.store, "key")
            assert (watched.write.given, watched.read.given) == (3, 3), "a claim is looked for before it is written"
            await asyncio.gather(*(whole_life(watched.store, f"key {n}") for n in range(20)))

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork here")
def test_nobody_on_the_loop_waits_for_a_fork(path: Path) -> None:
    async def main() -> None:
        async with Watched(path) as watched:
            connections = watched.store._database.get().connections
            connections.freeze()
            waiting = asyncio.create_task(whole_life(watched.store, "key"))
            while not watched.read.given:
                await asyncio.sleep(0)
            assert not waiting.done()
            connections.thaw()
            await waiting

    asyncio.run(main())


def test_both_faces_and_both_ways_meet_in_one_file(path: Path) -> None:
    async def main() -> None:
        async with Watched(path) as watched, AsyncSqliteStore(SqliteSettings(str(path), "full")) as other:
            sync = SqliteStore(str(path))
            names = [f"key {n}" for n in range(30)]
            found = await asyncio.gather(
                *(claim(store, name, f"{id(store)}") for name in names for store in (watched.store, other)),
                *(
                    asyncio.to_thread(
                        lambda key: sync.claim(
                            key, "f", owner="sync", lease_ms=30_000, retention_ms=DAY_MS, takeover=False
                        ),
                        Key("t", "s", name),
                    )
                    for name in names
                ),
            )
            assert sorted(reply.lease.key.name for reply in found if isinstance(reply, Acquired)) == sorted(names)
            sync.close()

    asyncio.run(main())


@pytest.mark.parametrize("synchronous", ["normal", "full"])
def test_a_damaged_row_fails_for_who_asks_for_it_alone(tmp_path: Path, synchronous: str) -> None:
    path = tmp_path / "semel.db"
    names = [f"{number}" for number in range(40)]

    async def asked(store: AsyncSqliteStore, name: str) -> str | None:
        try:
            assert isinstance(await claim(store, name), Occupied)
        except StoreUnavailable:
            return name
        return None

    async def run() -> None:
        async with Watched(path, synchronous=synchronous) as watched:
            for name in names:
                assert isinstance(claimed := await claim(watched.store, name, "first"), Acquired)
                assert await watched.store.complete(claimed.lease, ANSWER, retention_ms=DAY_MS)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE semel_records SET fingerprint = CAST(x'fffe' AS TEXT) WHERE name = '7'")
        connection.close()
        async with Watched(path, synchronous=synchronous) as watched:
            for _ in range(3):
                failed = await asyncio.gather(*(asked(watched.store, name) for name in names))
                assert [name for name in failed if name is not None] == ["7"]

    asyncio.run(run())
