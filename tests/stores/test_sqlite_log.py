"""The log comes back into the file beside whoever writes, and nothing that was written gets lost on the way."""

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from semel import Acquired, Key, StoreUnavailable
from semel.core.effects import Claim
from semel.runtime.clock import wall_ms
from semel.stores.sqlite import log
from semel.stores.sqlite.answers import value_of
from semel.stores.sqlite.connections import Lent, Purpose, SqliteConnections
from semel.stores.sqlite.settings import SqliteSettings
from semel.stores.sqlite.writer import Writer

DAY_MS = 86_400_000
PATIENCE_S = 10.0


def a_claim(name: str, owner: str = "owner") -> Claim:
    return Claim(Key("t", "s", name), "f", owner, 30_000, DAY_MS, False)


@pytest.fixture(autouse=True)
def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "CALLS_MAX", 4)
    monkeypatch.setattr(log, "BEHIND_MAX", 16)


@pytest.fixture
def connections(tmp_path: Path) -> Iterator[SqliteConnections]:
    made = SqliteConnections(SqliteSettings(str(tmp_path / "a.db"), busy_timeout_ms=20))
    made.prepare()
    yield made
    made.close()


@pytest.fixture
def writer(connections: SqliteConnections) -> Iterator[Writer]:
    made = Writer(connections, wall_ms, lambda calls: None)
    made.log._calls = 0
    yield made
    made.log.wait()


@pytest.fixture
def other(connections: SqliteConnections) -> Iterator[sqlite3.Connection]:
    """Another program's."""
    connection = sqlite3.connect(connections.settings.path, timeout=0, isolation_level=None, check_same_thread=False)
    yield connection
    connection.close()


def filled(writer: Writer, *, calls: int = 4) -> None:
    """The next who writes brings the log back."""
    answers = writer.run([a_claim(f"key {n}") for n in range(calls)])
    assert all(type(value_of(answer)) is Acquired for answer in answers)


def written(writer: Writer, name: str) -> None:
    assert [type(value_of(answer)) for answer in writer.run([a_claim(name)])] == [Acquired]


def left(connections: SqliteConnections) -> int:
    """How many pages of the log are not in the file, by the counts that SQLite's processes share."""
    with open(f"{connections.settings.path}-shm", "rb") as file:
        head = file.read(100)
    pages, back = int.from_bytes(head[16:20], sys.byteorder), int.from_bytes(head[96:100], sys.byteorder)
    return pages - back


def times_begun(connections: SqliteConnections) -> int:
    """How often the log has begun anew, by its own count."""
    with open(f"{connections.settings.path}-wal", "rb") as file:
        return int.from_bytes(file.read(16)[12:])


def when_lent(connections: SqliteConnections, wanted: Purpose, act: Callable[[], None], mp: pytest.MonkeyPatch) -> None:
    """Do something just before the connection is lent."""
    lend = connections.lend

    def lent(purpose: Purpose, *, beside: bool = False) -> Lent:
        if purpose == wanted:
            act()
        return lend(purpose, beside=beside)

    mp.setattr(connections, "lend", lent)


def waited(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


def test_what_was_written_comes_back_into_the_file(writer: Writer, connections: SqliteConnections) -> None:
    filled(writer)
    assert left(connections) > 4
    written(writer, "another")
    writer.log.wait()
    assert left(connections) < 4, "all that was there when it was done"
    assert connections._lent == 0


def test_no_commit_of_ours_brings_it_back_by_the_way(connections: SqliteConnections) -> None:
    for purpose in ("write", "at once"):
        with connections.lend(purpose) as connection:
            assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


def test_the_log_never_begins_anew_while_it_is_brought_back(
    writer: Writer, connections: SqliteConnections, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is when SQLite loses what is written. Whatever others do, they cannot make it happen then."""
    other.execute("CREATE TABLE others (a)")
    seen: list[int] = []

    def interfere() -> None:
        for _ in range(3):
            other.execute("PRAGMA wal_checkpoint(PASSIVE)")
            other.execute("INSERT INTO others VALUES (1)")
            seen.append(times_begun(connections))

    interfere()
    interfere()
    assert len(set(seen)) > 1, "without a reader it does begin anew"
    seen.clear()
    filled(writer)
    when_lent(connections, "log", interfere, monkeypatch)
    writer.log.add(1)  # and nobody of this process writes: the other program would find the file locked
    writer.log.wait()
    assert len(seen) == 3
    assert len(set(seen)) == 1
    interfere()
    assert len(set(seen)) > 1, "afterwards it does again"


def test_nobody_brings_anything_back_while_we_do_if_all_was_in_the_file(
    writer: Writer, connections: SqliteConnections, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then others can make it begin anew, and none of them may take what is new for what was brought back."""
    filled(writer)
    other.execute("CREATE TABLE others (a)")
    seen: list[int] = []

    def interfere() -> None:
        before = times_begun(connections)
        other.execute("INSERT INTO others VALUES (1)")
        other.execute("PRAGMA wal_checkpoint(PASSIVE)")
        seen.extend((times_begun(connections) - before, left(connections)))

    other.execute("PRAGMA wal_checkpoint(PASSIVE)")
    assert left(connections) == 0
    when_lent(connections, "log", interfere, monkeypatch)
    writer.log.add(5)
    writer.log.wait()
    assert seen[0] == 1
    assert seen[1] > 0
    other.execute("PRAGMA wal_checkpoint(PASSIVE)")
    assert left(connections) == 0, "afterwards they can"


def test_nobody_writes_while_all_of_it_is_brought_back(
    writer: Writer, connections: SqliteConnections, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "PAGES_MAX", 0)
    locked: list[bool] = []

    def look() -> None:
        try:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
            locked.append(False)
        except sqlite3.OperationalError:
            locked.append(True)

    filled(writer)
    when_lent(connections, "log", look, monkeypatch)
    writer.log.add(1)
    writer.log.wait()
    assert writer.log.too_long
    with connections.lend("at once") as connection:
        assert writer.write_at_once(connection, [a_claim("at once")]) is None, "who must not wait leaves it to others"
    before = times_begun(connections)
    written(writer, "another")
    assert locked == [False, True]
    assert times_begun(connections) == before + 1
    with connections.lend("at once") as connection:
        assert writer.write_at_once(connection, [a_claim("at once")]) is not None


@pytest.mark.parametrize("closed_to", ["log", "pin"])
def test_a_log_that_cannot_be_brought_back_keeps_nobody_from_writing(
    writer: Writer, connections: SqliteConnections, closed_to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(writer)
    opened = connections.open_new

    def fails(purpose: Purpose) -> sqlite3.Connection:
        if purpose == closed_to:
            raise StoreUnavailable("there is no room left")
        return opened(purpose)

    with monkeypatch.context() as patched:
        patched.setattr(connections, "open_new", fails)
        written(writer, "another")
        writer.log.wait()
        writer.log.too_long = True
        written(writer, "a third")
    assert connections._lent == 0
    before = left(connections)
    writer.log.add(5)
    writer.log.wait()
    assert left(connections) < before


def test_at_the_end_of_python_there_are_no_new_threads(
    writer: Writer, connections: SqliteConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(writer)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    written(writer, "another")
    assert connections._lent == 0


def test_whoever_finds_a_long_log_brings_it_back(writer: Writer, connections: SqliteConnections) -> None:
    """Many short processes would otherwise leave it to each other, for ever."""
    filled(writer)
    beside = SqliteConnections(connections.settings)
    assert beside.log_pages() == os.path.getsize(f"{connections.settings.path}-wal") // 4096 > 4
    before, second = left(connections), Writer(beside, wall_ms, lambda calls: None)
    written(second, "of another process")
    second.log.wait()
    assert left(connections) < before
    beside.close()


def test_a_file_that_is_not_there_has_no_log(tmp_path: Path) -> None:
    assert SqliteConnections(SqliteSettings(str(tmp_path / "none.db"))).log_pages() == 0


def test_a_fork_waits_for_the_log_and_not_the_other_way(
    writer: Writer, connections: SqliteConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    def freeze() -> None:
        threading.Thread(target=connections.freeze).start()
        while not connections.frozen:
            time.sleep(0.001)

    filled(writer)
    when_lent(connections, "log", freeze, monkeypatch)
    writer.log.add(1)
    assert writer.log._thread is not None
    writer.log._thread.join(5)
    assert not writer.log._thread.is_alive()
    connections.thaw()


def test_who_writes_waits_for_a_disk_that_is_too_slow(
    writer: Writer, connections: SqliteConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    when_lent(connections, "log", lambda: waited(go_on), monkeypatch)
    filled(writer)
    written(writer, "another")  # the log is being brought back now, and it takes long
    for number in range(17):
        assert not writer.log.behind
        written(writer, f"meanwhile {number}")
    assert writer.log.behind
    with connections.lend("at once") as connection:
        assert writer.write_at_once(connection, [a_claim("at once")]) is None
    with ThreadPoolExecutor(2) as pool:
        late: list[Future[Any]] = [
            pool.submit(writer.run, [a_claim("late")]),
            pool.submit(writer.call, a_claim("later")),
        ]
        time.sleep(0.05)
        assert not any(each.done() for each in late)
        go_on.set()
        assert [type(each.result(PATIENCE_S)) for each in late] == [list, Acquired]


def test_what_is_written_at_once_brings_it_back_too(writer: Writer, connections: SqliteConnections) -> None:
    filled(writer)
    with connections.lend("at once") as connection:
        assert writer.write_at_once(connection, [a_claim("at once")]) is not None
        writer.log.wait()
        assert left(connections) < 4
