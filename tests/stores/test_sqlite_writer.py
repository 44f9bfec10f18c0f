"""Group commit: callers share a transaction, never a failure; a crash takes nothing that was acknowledged."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from semel import Acquired, Key, Lease, Occupied, RecordUnreadable, Result, StoreUnavailable
from semel.core import model
from semel.core.decisions import Undecided
from semel.core.effects import Claim, Complete, Effect, Read
from semel.core.policy import Policy
from semel.core.protocol import abandon, acquire
from semel.errors import StoreTimeout
from semel.runtime.drive import adrive
from semel.runtime.perform import async_performer
from semel.stores.sqlite.aio import AsyncSqliteStore
from semel.stores.sqlite.answers import CallFailed, Replied, value_of
from semel.stores.sqlite.connections import SqliteConnections
from semel.stores.sqlite.operate import COUNT_FINISHED, COUNT_IN_PROGRESS
from semel.stores.sqlite.scripts import (
    CLAIM,
    COMPLETE,
    HOLDS,
    PURGES,
    READ,
    RELEASE_FIRST,
    REMOVE,
    RENEW,
    RESOLVE,
    TAKE,
)
from semel.stores.sqlite.settings import SqliteSettings
from semel.stores.sqlite.store import SqliteStore
from semel.stores.sqlite.writer import Writer

DAY_MS = 86_400_000
ANSWER = Result("x", b"answer")


def a_claim(name: str, owner: str = "owner") -> Claim:
    return Claim(Key("t", "s", name), "f", owner, 30_000, DAY_MS, False)


class Clock:
    """Goes by itself, and can be made to do something in the middle of a transaction."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.then: Callable[[], None] | None = None

    def __call__(self) -> int:
        if self.then is not None:
            self.then()
        return self.now_ms


class Written:
    """Counts transactions."""

    def __init__(self) -> None:
        self.groups: list[int] = []

    def __call__(self, calls: Sequence[Effect[Any]]) -> None:
        self.groups.append(len(calls))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def writer(tmp_path: Path, clock: Clock, written: Written) -> Writer:
    connections = SqliteConnections(SqliteSettings(str(tmp_path / "a.db"), busy_timeout_ms=20))
    connections.prepare()
    return Writer(connections, clock, written)


@pytest.mark.parametrize("takeover", [False, True])
@pytest.mark.parametrize("fingerprint", ["f", "another"])
@pytest.mark.parametrize("owner", ["owner", "other"])
@pytest.mark.parametrize("later_ms", [0, 29_999, 30_000, DAY_MS - 1, DAY_MS])
@pytest.mark.parametrize("finished", [False, True])
def test_a_claim_that_did_not_look_first_decides_as_the_model(
    writer: Writer, clock: Clock, finished: bool, later_ms: int, owner: str, fingerprint: str, takeover: bool
) -> None:
    """Between a look and the transaction anything may happen, so the transaction must not rely on the look."""
    old, first = model.claim(None, a_claim("key"), clock.now_ms)
    assert writer.run([a_claim("key")]) == [Replied(first)]
    if finished:
        complete = Complete(old.lease, ANSWER, DAY_MS)
        done, _ = model.complete(old, complete, clock.now_ms)
        assert done is not None
        old = done
        assert writer.run([complete]) == [Replied(True)]
    clock.now_ms += later_ms
    call = Claim(old.key, fingerprint, owner, 30_000, DAY_MS, takeover)
    new, reply = model.claim(old, call, clock.now_ms)
    assert writer.run([call]) == [Replied(reply)]
    assert writer.run([Read(old.key)]) == [Replied(model.read(new, clock.now_ms))]


def test_what_waits_during_a_transaction_is_in_the_next_one_together(
    writer: Writer, clock: Clock, written: Written
) -> None:
    in_transaction, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        in_transaction.set()
        assert go_on.wait(5)

    clock.then = hold
    with ThreadPoolExecutor(51) as pool:
        first = pool.submit(writer.call, a_claim("first"))
        assert in_transaction.wait(5)
        clock.then = None
        others = [pool.submit(writer.call, a_claim("same", f"owner {n}")) for n in range(50)]
        while len(writer._waiting) < 50:
            time.sleep(0.001)
        go_on.set()
        replies = [future.result() for future in others]
    assert isinstance(first.result(), Acquired)
    assert written.groups == [1, 50]
    [won] = [reply for reply in replies if isinstance(reply, Acquired)]
    lost = [reply for reply in replies if isinstance(reply, Occupied)]
    assert len(lost) == 49
    assert {reply.record.owner for reply in lost} == {won.lease.owner}


def test_a_group_has_a_largest_size(writer: Writer, clock: Clock, written: Written) -> None:
    clock.then = lambda: time.sleep(0.02)
    with ThreadPoolExecutor(300) as pool:
        replies = list(pool.map(lambda n: writer.call(a_claim(f"key {n}")), range(300)))
    assert all(isinstance(reply, Acquired) for reply in replies)
    assert sum(written.groups) == 300
    assert max(written.groups) <= 256


def test_a_member_that_fails_takes_nobody_with_it(writer: Writer, written: Written, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON semel_records WHEN new.name = 'bad' "
            "BEGIN SELECT raise(ROLLBACK, 'refused'); END"
        )
    good, bad, also_good = writer.run([a_claim("good"), a_claim("bad"), a_claim("also good")])
    assert isinstance(value_of(good), Acquired)
    assert isinstance(value_of(also_good), Acquired)
    with pytest.raises(StoreUnavailable, match="refused"):
        value_of(bad)
    assert written.groups == [1, 1]


def test_an_unreadable_record_ends_nobody_s_transaction(writer: Writer, written: Written, tmp_path: Path) -> None:
    writer.call(a_claim("strange"))
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("UPDATE semel_records SET state = 7")
    good, strange = writer.run([a_claim("good"), a_claim("strange", "other")])
    assert isinstance(value_of(good), Acquired)
    with pytest.raises(RecordUnreadable):
        value_of(strange)
    assert written.groups == [1, 2]


def test_a_lock_is_waited_for_once_per_group(writer: Writer, tmp_path: Path) -> None:
    holder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    answers = writer.run([a_claim(f"key {n}") for n in range(100)])
    assert time.monotonic() - started < 1
    errors = [answer.error for answer in answers if isinstance(answer, CallFailed)]
    assert all(isinstance(error, StoreUnavailable) for error in errors)
    assert len({id(error) for error in errors}) == 100
    holder.execute("COMMIT")


def test_an_interrupted_leader_answers_for_all_and_hands_on(writer: Writer, clock: Clock, written: Written) -> None:
    def interrupt() -> None:
        clock.then = None
        raise KeyboardInterrupt

    clock.then = interrupt
    with pytest.raises(KeyboardInterrupt):
        writer.call(a_claim("first"))
    assert isinstance(writer.call(a_claim("second")), Acquired)
    reply = writer.call(Complete(Lease(Key("t", "s", "first"), "owner", 1, 0), ANSWER, DAY_MS))
    assert reply is False, "what was interrupted must have been rolled back"
    assert written.groups == [1, 1]


def test_a_caller_interrupted_while_waiting_leaves_no_call_behind(
    writer: Writer, clock: Clock, written: Written
) -> None:
    in_transaction, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        in_transaction.set()
        assert go_on.wait(5)

    clock.then = hold
    leader = threading.Thread(target=writer.call, args=[a_claim("first")])
    leader.start()
    assert in_transaction.wait(5)
    clock.then = None
    previous = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        threading.Timer(0.02, os.kill, [os.getpid(), signal.SIGUSR1]).start()
        with pytest.raises(KeyboardInterrupt):
            writer.call(a_claim("second"))
    finally:
        signal.signal(signal.SIGUSR1, previous)
        go_on.set()
        leader.join()
    assert not writer._waiting
    assert written.groups == [1]


def test_the_loop_is_never_blocked(tmp_path: Path) -> None:
    async def main() -> None:
        holder = sqlite3.connect(path, isolation_level=None)
        async with AsyncSqliteStore(SqliteSettings(path, busy_timeout_ms=20_000)) as store:
            first = await claimed(store, "done")
            assert await store.complete(first, ANSWER, retention_ms=DAY_MS)
            holder.execute("BEGIN IMMEDIATE")
            stuck = asyncio.create_task(claimed(store, "new"))
            await asyncio.sleep(0.02)
            replay = await store.claim(first.key, "f", owner="x", lease_ms=1, retention_ms=1, takeover=False)
            assert isinstance(replay, Occupied)
            assert await store.get(first.key) == replay.record
            assert (await store.counts()).succeeded == 1
            assert not stuck.done(), "the replay must not have waited for the writer"
            holder.execute("COMMIT")
            assert (await stuck).attempt == 1

    async def claimed(store: AsyncSqliteStore, name: str) -> Lease:
        reply = await store.claim(
            Key("t", "s", name), "f", owner="o", lease_ms=9_000, retention_ms=DAY_MS, takeover=False
        )
        assert isinstance(reply, Acquired)
        return reply.lease

    path = str(tmp_path / "a.db")
    asyncio.run(main())


def test_purge_in_parts_leaves_room_for_others(tmp_path: Path) -> None:
    now_ms = [1_000]
    store = SqliteStore(str(tmp_path / "a.db"), clock=lambda: now_ms[0])
    database = store._database.get()
    for start in range(0, 1_200, 200):
        database.writer.run([a_claim(f"key {n}") for n in range(start, start + 200)])
    now_ms[0] += DAY_MS
    database.writer.run([a_claim("alive")])
    assert store.purge(limit=1_100) == 1_100
    assert store.purge(limit=1_000) == 100
    assert store.purge(limit=0) == store.purge(limit=-1) == 0
    assert [record.key.name for record in store.scan().records] == ["alive"]


WRITE_FOR_EVER = """
import os, sys, threading
from semel import Key, Result
from semel.stores.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
def work(thread):
    for number in range(100_000):
        name = f"{os.getpid()}-{thread}-{number}"
        claimed = store.claim(Key("t", "s", name), "f", owner="o", lease_ms=9000, retention_ms=99000, takeover=False)
        assert store.complete(claimed.lease, Result("x", name.encode()), retention_ms=99000)
        sys.stdout.write(name + "\\n")
        sys.stdout.flush()
for thread in range(8):
    threading.Thread(target=work, args=[thread]).start()
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    acknowledged: list[str] = []
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, path], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(100)]
        process.kill()
        lines += process.stdout.readlines()
        process.wait()
        acknowledged += [line.strip() for line in lines if line.endswith("\n")]
    store = SqliteStore(path)
    for name in acknowledged:
        record = store.get(Key("t", "s", name))
        assert record is not None
        assert record.result == Result("x", name.encode())
    assert store.counts().succeeded >= len(acknowledged) >= 300


def test_counts_and_purge_read_only_their_index(tmp_path: Path) -> None:
    SqliteStore(str(tmp_path / "a.db")).migrate()
    connection = sqlite3.connect(tmp_path / "a.db")

    class Nulls(dict[str, None]):
        def __missing__(self, name: str) -> None: ...

    def plan(sql: str) -> str:
        return "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", Nulls()))

    assert "COVERING INDEX semel_in_progress" in plan(COUNT_IN_PROGRESS)
    assert "COVERING INDEX semel_finished" in plan(COUNT_FINISHED)
    assert "COVERING INDEX semel_finished (expires_ms<?)" in plan(PURGES[0])
    assert "COVERING INDEX semel_in_progress (lease_until_ms<?)" in plan(PURGES[1])
    for sql in (READ, CLAIM, TAKE, RENEW, COMPLETE, RELEASE_FIRST, RESOLVE, REMOVE, HOLDS):
        assert "sqlite_autoindex_semel_records_1 (digest=?" in plan(sql)
        assert "SCAN semel_records" not in plan(sql)


@pytest.fixture
def patient(tmp_path: Path, clock: Clock, written: Written) -> Writer:
    """One whose lock is waited for a second, which is as long as a call may take."""
    connections = SqliteConnections(SqliteSettings(str(tmp_path / "a.db"), busy_timeout_ms=1_000))
    connections.prepare()
    return Writer(connections, clock, written)


def test_a_leader_whose_time_ends_does_not_refuse_those_who_came_later(patient: Writer, tmp_path: Path) -> None:
    """The first one waits for the lock. The next two wait behind it; the last one still has time when the lock is free.

    Nobody waits for longer than one call may take.
    """
    took_s: dict[str, float] = {}

    def ask(name: str) -> object:
        started = time.monotonic()
        try:
            return patient.call(a_claim(name))
        except StoreTimeout as failure:
            return failure
        finally:
            took_s[name] = time.monotonic() - started

    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(3) as threads:
        replies = {}
        for name, pause_s in (("first", 0.1), ("second", 0.5), ("third", 0.7)):
            replies[name] = threads.submit(ask, name)
            time.sleep(pause_s)  # the file is locked for 1.3 s: neither the lock nor the writer tells who waits
        other.execute("ROLLBACK")
        other.close()
        assert isinstance(replies["first"].result(), StoreTimeout)
        assert isinstance(replies["second"].result(), StoreTimeout)
        assert isinstance(replies["third"].result(), Acquired)
    assert max(took_s.values()) < 1.3
    assert patient.call(a_claim("second", "another")) == Acquired(
        Lease(Key("t", "s", "second"), "another", 1, 1_000_000 + 30_000)
    ), "what was refused was never made"


def test_who_waits_behind_a_disk_that_hangs_gives_up(patient: Writer, clock: Clock) -> None:
    """What the writer is in the middle of goes on: it is there when the disk answers again."""
    hanging, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        assert go_on.wait(20)

    clock.then = hang
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(patient.call, a_claim("first"))
        assert hanging.wait(20)
        started = time.monotonic()
        with pytest.raises(StoreTimeout, match="no answer within 1 s"):
            patient.call(a_claim("second"))
        assert time.monotonic() - started < 1.3
        clock.then = None
        go_on.set()
        assert isinstance(first.result(), Acquired)
    assert isinstance(patient.call(a_claim("second", "another")), Acquired), "what was refused was never made"


def test_tasks_behind_a_disk_that_hangs_give_up(tmp_path: Path, clock: Clock) -> None:
    """A claim that is under way when its caller gives up is given back when the disk answers again."""
    hanging, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        assert go_on.wait(20)

    async def main() -> None:
        store = AsyncSqliteStore(SqliteSettings(str(tmp_path / "a.db"), busy_timeout_ms=1_000), clock=clock)

        async def refused_s(name: str) -> float:
            started = time.monotonic()
            decision = await adrive(acquire(Key("t", "s", name), "f", name, Policy()), async_performer(store))
            assert isinstance(decision, Undecided), decision
            return time.monotonic() - started

        assert await store.get(Key("t", "s", "first")) is None
        store._pace.resting, store._pace._good_from_s = True, float("inf")  # as for a disk that is slow
        clock.then = hang
        first = asyncio.create_task(refused_s("first"))
        await asyncio.get_running_loop().run_in_executor(None, hanging.wait, 20)
        assert max(await asyncio.gather(first, *(refused_s(f"key {n}") for n in range(3)))) < 1.3
        clock.then = None
        giving_back = asyncio.create_task(
            adrive(abandon(Lease(Key("t", "s", "first"), "first", 1, 0)), async_performer(store))
        )
        go_on.set()
        assert await giving_back
        assert await store.get(Key("t", "s", "first")) is None
        await store.close()

    asyncio.run(main())
