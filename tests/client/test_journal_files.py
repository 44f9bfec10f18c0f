"""A journal in a file: the same as the model, call by call, and after every crash what it has said."""

import gc
import multiprocessing
import os
import signal
import sqlite3
import stat
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.senders import CREATED, PAY, REQUEST, close_intent, open_intent, start, wall_clock
from semel.client.file import meaning
from semel.client.memory import MemoryJournal
from semel.client.sqlite import SqliteJournal
from semel.codecs.sealed import Seal
from semel.core import journal_model
from semel.core.journal import (
    BODY_MAX,
    BeginAttempt,
    CallRequest,
    CloseIntent,
    ForgetIntent,
    IntentGranted,
    IntentId,
    IntentKept,
    IntentState,
    JournalCall,
    KeptAnswer,
    LeaveIntent,
    ListIntents,
    OpenIntent,
    PurgeIntents,
    ReadIntent,
    RenewIntent,
)
from semel.core.journal_model import IntentBook
from semel.errors import RecordUnreadable, StoreUnavailable
from semel.testing.clock import ManualClock

NAMES = st.builds(IntentId, st.sampled_from(["a", "b", "ä", "😀", "Z"]), st.sampled_from(["", "shop"]))
OWNERS, KEYS = st.sampled_from(["me", "you"]), st.sampled_from(["k1", "k2"])
REQUESTS = st.builds(
    CallRequest, st.just("POST"), st.just("https://x/"), st.just(()), st.sampled_from([b"", b"\0\xff"])
)
TIMES, SPACES = st.sampled_from([1, 5, 20]), st.sampled_from(["", "shop"])
ANSWERS = st.sampled_from([KeptAnswer.of(201, (("ETag", '"1"'),), b"\xff"), KeptAnswer(200, (), None, BODY_MAX + 1)])
CALLS: st.SearchStrategy[JournalCall[Any]] = st.one_of(
    st.builds(OpenIntent, NAMES, REQUESTS, KEYS, OWNERS, TIMES, st.sampled_from([10, 40])),
    st.builds(RenewIntent, NAMES, OWNERS, TIMES),
    st.builds(BeginAttempt, NAMES, OWNERS, TIMES),
    st.builds(CloseIntent, NAMES, KEYS, ANSWERS),
    st.builds(LeaveIntent, NAMES, OWNERS, st.sampled_from(["", "späť"]), st.booleans()),
    st.builds(ReadIntent, NAMES),
    st.builds(ForgetIntent, NAMES, KEYS),
    st.builds(PurgeIntents, SPACES, st.sampled_from([0, 5]), st.sampled_from([1, 10])),
    st.builds(ListIntents, SPACES, st.sampled_from([1, 10]), st.sampled_from(["", "a"]), st.booleans()),
)


@pytest.mark.parametrize("seal", [None, Seal({"2026-11": bytes(32)})], ids=["plain", "sealed"])
@given(history=st.lists(st.tuples(CALLS, st.integers(0, 8)), max_size=25))
@settings(max_examples=40, deadline=None)
def test_journals_answer_as_the_model_does(history: list[tuple[JournalCall[Any], int]], seal: Seal | None) -> None:
    clock, book = ManualClock(), IntentBook()
    with tempfile.TemporaryDirectory() as folder:
        journals = SqliteJournal(f"{folder}/journal.db", clock, seal), MemoryJournal(clock)
        lists = [ListIntents(namespace, 100, "", answered) for namespace in ("", "shop") for answered in (False, True)]
        for call, late_ms in [*history, *((listing, 0) for listing in lists)]:
            book, reply = journal_model.answer(book, call, clock())
            assert [journal.answer(call) for journal in journals] == [reply, reply]
            clock.advance(late_ms)
        for journal in journals:
            journal.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal.db")


def test_what_was_answered_is_on_the_disk(path: str) -> None:
    journal = SqliteJournal(path, wall_clock)
    assert isinstance(open_intent(journal, "pay:42", "k1"), IntentGranted)
    journal.close()
    entry = SqliteJournal(path, wall_clock).answer(ReadIntent(PAY))
    assert entry is not None
    assert (entry.key, entry.request, entry.state) == ("k1", REQUEST, IntentState.OPEN)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277, 0o777], ids=oct)
def test_the_files_are_for_their_owner_alone_whatever_the_umask(path: str, umask: int) -> None:
    before = os.umask(umask)
    try:
        journal = SqliteJournal(path, wall_clock)
        for _ in range(2):
            open_intent(journal, "pay:42", "k1")
            modes = {name: stat.S_IMODE(os.stat(path + name).st_mode) for name in ("", "-wal", "-shm")}
            assert modes == dict.fromkeys(modes, 0o600)
            journal.close()  # which removes -wal and -shm
    finally:
        os.umask(before)


def test_every_commit_is_synced(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connect_and_note(*args: Any, **rest: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **rest))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connect_and_note)
    journal = SqliteJournal(path, wall_clock)
    assert opened[0].execute("PRAGMA synchronous").fetchone() == (2,)
    assert opened[0].execute("PRAGMA journal_mode").fetchone() == ("wal",)
    journal.close()


def test_a_journal_that_is_dropped_closes_its_file(path: str) -> None:
    journal = SqliteJournal(path, wall_clock)
    assert Path(f"{path}-wal").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del journal
        gc.collect()
    assert not Path(f"{path}-wal").exists(), "the last one to close the file removes this one"


def test_no_other_process_writes_between_the_look_at_an_intent_and_its_grant(path: str) -> None:
    SqliteJournal(path, wall_clock).close()
    other = sqlite3.connect(path, timeout=0, isolation_level=None)

    def clock() -> int:  # it is read inside of the transaction
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            other.execute("BEGIN IMMEDIATE")
        return 0

    assert isinstance(open_intent(SqliteJournal(path, clock), "pay:42", "k1"), IntentGranted)
    other.close()


def test_two_processes_and_their_threads_race_and_one_sender_gets_each_intent(path: str) -> None:
    racers = [start("race", path, me) for me in ("a", "b")]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        granted = [name for racer in racers for name in racer.communicate(timeout=60)[0].split()]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    assert [racer.returncode for racer in racers] == [0, 0]
    assert Counter(granted) == {f"n{number}": 1 for number in range(20)}


@pytest.mark.parametrize("lines", [1, 2, 3, 10, 25])
def test_after_kill_9_the_journal_has_everything_that_it_has_said(path: str, lines: int) -> None:
    writer = start("write", path)
    assert writer.stdout is not None
    said = [writer.stdout.readline() for _ in range(lines)]
    writer.send_signal(signal.SIGKILL)
    said += writer.communicate()[0].splitlines()
    journal = SqliteJournal(path, wall_clock)
    told = {name: state for state, name in (line.split() for line in said)}
    for name, state in told.items():
        entry = journal.answer(ReadIntent(IntentId(name)))
        assert entry is not None, name
        assert entry.key == f"k{name[1:]}"
        assert state == "open" or entry.state is IntentState.ANSWERED, name
    assert isinstance(open_intent(journal, "n0", "another"), IntentKept) or told["n0"] == "open"


def test_a_child_of_a_fork_uses_the_journal_and_so_does_its_parent(path: str) -> None:
    journal = SqliteJournal(path, wall_clock)
    open_intent(journal, "before", "k0")
    child = multiprocessing.get_context("fork").Process(target=open_intent, args=(journal, "child", "k1"))
    child.start()
    open_intent(journal, "parent", "k2")
    child.join(60)
    assert child.exitcode == 0
    assert [entry.id.name for entry in journal.answer(ListIntents("", 10))] == ["before", "child", "parent"]


@pytest.mark.parametrize("removed", ["", "-wal", "-shm"])
def test_a_file_that_was_removed_under_the_journal_stops_it(path: str, removed: str) -> None:
    journal = SqliteJournal(path, wall_clock)
    os.remove(path + removed)
    with pytest.raises(StoreUnavailable, match="was removed or replaced while this process had it open"):
        open_intent(journal, "pay:42", "k1")
    assert not os.path.exists(path + removed)


def test_a_journal_waits_for_the_process_that_makes_the_file(path: str) -> None:
    maker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    maker.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.05, maker.execute, ["ROLLBACK"])
    release.start()
    assert isinstance(open_intent(SqliteJournal(path, wall_clock), "pay:42", "k1"), IntentGranted)
    release.join()
    maker.close()


def test_processes_that_make_the_file_at_once_all_have_it(path: str) -> None:
    racers = [start("create", path, str(time.monotonic() + 1)) for _ in range(2)]
    for racer in racers:
        out, _ = racer.communicate(timeout=60)
        assert (racer.returncode, out.split()) == (0, ["made"] * CREATED)


@pytest.mark.parametrize(
    ("statement", "kind", "says"),
    [
        ("INSERT INTO t SELECT zeroblob(100000)", StoreUnavailable, "the disk of the journal journal.db is full"),
        ("SELECT * FROM nowhere", StoreUnavailable, "the journal journal.db failed, so nothing is sent: no such table"),
    ],
)
def test_what_errors_mean(statement: str, kind: type[Exception], says: str) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (x)")
    connection.execute("PRAGMA max_page_count = 2")
    with pytest.raises(sqlite3.Error) as failed:
        connection.execute(statement)
    connection.close()
    found = meaning(failed.value, "journal.db")
    assert type(found) is kind
    assert str(found).startswith(says)


def test_a_read_only_and_a_locked_journal(path: str) -> None:
    SqliteJournal(path, wall_clock).close()
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    with pytest.raises(sqlite3.Error) as failed:
        reader.execute("DELETE FROM intents")
    reader.close()
    assert "give this process the right to write" in str(meaning(failed.value, path))
    first, second = (sqlite3.connect(path, timeout=0, isolation_level=None) for _ in range(2))
    first.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.Error) as locked:
        second.execute("BEGIN IMMEDIATE")
    for connection in (first, second):
        connection.close()
    assert "was locked for more than 10 s" in str(meaning(locked.value, path))


def test_an_intent_that_cannot_be_read_is_not_taken_for_none(path: str) -> None:
    journal = SqliteJournal(path, wall_clock)
    open_intent(journal, "pay:42", "k1")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE intents SET request = x'00'")
    connection.close()
    with pytest.raises(RecordUnreadable, match=r"the intent 'pay:42' in .* cannot be read by this version"):
        open_intent(journal, "pay:42", "k2")
    assert not isinstance(open_intent(journal, "other", "k3"), IntentKept), "the journal goes on"
    assert close_intent(journal, "other", "k3")
