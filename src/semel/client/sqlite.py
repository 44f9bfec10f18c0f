"""A journal in a file of its own, which survives every crash of its process and of the machine.

Each call is one transaction, and its reply is given after the disk has it (WAL, `synchronous=FULL`). A call on one
intent reads its row, asks the model what becomes of it, and writes that: so the file cannot differ from the model.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TypeVar, cast
from weakref import WeakSet

import msgspec

from semel.core import journal_model
from semel.core.journal import (
    CallRequest,
    IntentEntry,
    IntentId,
    IntentState,
    JournalCall,
    KeptAnswer,
    ListIntents,
    OfIntent,
    PurgeIntents,
)
from semel.core.journal_model import IntentBook
from semel.errors import RecordUnreadable, StoreMisconfigured, StoreUnavailable
from semel.store import Clock

T = TypeVar("T")
APPLICATION_ID = 0x73656D4A
"""Says in the file that it is a journal of semel ("semJ"): another program's database is never written to."""
SCHEMA_VERSION = 1
BUSY_TIMEOUT_S, RETRY_S = 10.0, 0.005
CREATE = (
    """CREATE TABLE IF NOT EXISTS intents (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    max_age_ms INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    owner TEXT NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL,
    error TEXT NOT NULL,
    request BLOB NOT NULL,
    answer BLOB,
    PRIMARY KEY (namespace, name)
)""",
    "CREATE INDEX IF NOT EXISTS intents_answered ON intents (namespace, finished_ms) WHERE state = 'answered'",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
READ = "SELECT * FROM intents WHERE namespace = ? AND name = ?"
WRITE = "INSERT OR REPLACE INTO intents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
DELETE = "DELETE FROM intents WHERE namespace = ? AND name = ?"
LIST = """SELECT * FROM intents
    WHERE namespace = ? AND name > ? AND (state = 'answered') = ? ORDER BY name LIMIT ?"""
PURGE = """DELETE FROM intents WHERE rowid IN (
    SELECT rowid FROM intents WHERE namespace = ? AND state = 'answered' AND finished_ms <= ?
    ORDER BY finished_ms, name LIMIT ?)"""


class SqliteJournal:
    """Threads of a process share one connection; processes share the file."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = os.path.abspath(path)  # a later chdir must not mean another file
        self._clock = clock
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity = (0, 0)
        _open_journals.add(self)
        with self._lock, self._errors():
            self._open()

    def answer(self, call: JournalCall[T]) -> T:
        call = call.checked()
        with self._lock, self._errors():
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                reply = self._answer(connection, call)
                connection.execute("COMMIT")
            except BaseException:
                self.close()  # which rolls back
                raise
            return reply

    def close(self) -> None:
        """Close the file. The next call opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def before_fork(self) -> None:
        """SQLite must not see a fork: the child would have the memory of locks that it does not hold."""
        self._lock.acquire()
        self.close()

    def after_fork(self) -> None:
        self._lock.release()

    def _answer(self, connection: sqlite3.Connection, call: JournalCall[T]) -> T:
        now_ms = self._clock()  # inside the transaction: calls of all processes have their times in their order
        if isinstance(call, ListIntents):
            rows = connection.execute(LIST, (call.namespace, call.after, call.answered, call.limit)).fetchall()
            return cast("T", tuple(map(self._entry, rows)))
        if isinstance(call, PurgeIntents):
            gone = connection.execute(PURGE, (call.namespace, now_ms - call.older_ms, call.limit))
            return cast("T", gone.rowcount)
        assert isinstance(call, OfIntent)
        name = call.id
        row = connection.execute(READ, (name.namespace, name.name)).fetchone()
        before = IntentBook() if row is None else IntentBook().but(self._entry(row))
        after, reply = journal_model.answer(before, call, now_ms)
        entry = after.entries.get(name)
        if entry is None and row is not None:
            connection.execute(DELETE, (name.namespace, name.name))
        elif entry is not None and after is not before:
            connection.execute(WRITE, _row(entry))
        return cast("T", reply)

    def _entry(self, row: tuple[object, ...]) -> IntentEntry:
        try:
            namespace, name, key, state, created_ms, max_age_ms, attempts, owner, until_ms, finished_ms, error = row[
                :-2
            ]
            request = msgspec.msgpack.decode(cast("bytes", row[-2]), type=CallRequest)
            answer = None if row[-1] is None else msgspec.msgpack.decode(cast("bytes", row[-1]), type=KeptAnswer)
            fields = (created_ms, max_age_ms, attempts, owner, until_ms, finished_ms, answer, error)
            entry = IntentEntry(
                IntentId(cast("str", name), cast("str", namespace)), cast("str", key), request, IntentState(state),
                *cast("tuple[int, int, int, str, int, int, KeptAnswer | None, str]", fields),
            )  # fmt: skip
        except (msgspec.MsgspecError, ValueError, TypeError) as error_found:
            raise RecordUnreadable(
                f"the intent {row[1]!r} in {self._path} cannot be read by this version, so nothing is sent for it: "
                "restore the file from a backup, or upgrade semel"
            ) from error_found
        return entry

    def _open(self) -> sqlite3.Connection:
        """The connection, to the file that is at the path."""
        if self._connection is not None:
            if _identity(self._path) != self._identity:
                raise StoreUnavailable(
                    f"{self._path} was removed or replaced while this process had it open, and its intents are not in "
                    "a new file: put it back, then restart every process that uses it"
                )
            return self._connection
        _create(self._path)
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        self._identity = _identity(self._path)
        self._connection = connection
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")  # all three of one moment: another process may be making the file
        version, application = _pragma(connection, "user_version"), _pragma(connection, "application_id")
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        connection.execute("COMMIT")
        if application != APPLICATION_ID and (tables or version or application):
            raise StoreMisconfigured(
                f"{self._path} is the database of another program: give the journal a file of its own"
            )
        if version > SCHEMA_VERSION:
            raise StoreMisconfigured(
                f"{self._path} was written by a newer version of semel (schema {version}, this one reads up to "
                f"{SCHEMA_VERSION}): upgrade semel here, too. Nothing was sent"
            )
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreMisconfigured(
                f"{self._path} cannot be written to in WAL mode: its file system does not allow it"
            )
        connection.execute("PRAGMA synchronous = FULL")
        if version < SCHEMA_VERSION:
            connection.execute("BEGIN IMMEDIATE")
            for statement in CREATE:
                connection.execute(statement)
            connection.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What SQLite and the system raise in the block is raised as one of ours."""
        try:
            yield
        except sqlite3.Error as error:
            raise meaning(error, self._path) from error
        except OSError as error:
            raise StoreMisconfigured(
                f"the journal {self._path} cannot be opened: {error.strerror}. Nothing is sent without it"
            ) from error


def meaning(error: sqlite3.Error, path: str) -> StoreUnavailable | StoreMisconfigured:
    """What an error of SQLite means. Before the first attempt of a call, it also means that nothing was sent."""
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable(
                f"the disk of the journal {path} is full, so nothing is sent: free some space, or purge "
                "answered intents"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN:
            return StoreMisconfigured(
                f"the journal {path} cannot be written to, so nothing is sent: give this process the right "
                "to write the file and its folder"
            )
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return StoreMisconfigured(f"{path} is no journal, or is damaged: restore it from a backup")
        case sqlite3.SQLITE_BUSY:
            return StoreUnavailable(
                f"{path} was locked for more than {BUSY_TIMEOUT_S:.0f} s: look for a program that keeps a "
                "write transaction open on it"
            )
        case _:
            return StoreUnavailable(f"the journal {path} failed, so nothing is sent: {error}")


def _row(entry: IntentEntry) -> tuple[object, ...]:
    return (
        entry.id.namespace,
        entry.id.name,
        entry.key,
        entry.state.value,
        entry.created_ms,
        entry.max_age_ms,
        entry.attempts,
        entry.owner,
        entry.lease_until_ms,
        entry.finished_ms,
        entry.error,
        msgspec.msgpack.encode(entry.request),
        None if entry.answer is None else msgspec.msgpack.encode(entry.answer),
    )


def _turn_to_wal(connection: sqlite3.Connection) -> str:
    """SQLite does not wait for other processes here, whatever the time-out says."""
    due_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            return mode
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > due_s:
                raise
        time.sleep(RETRY_S)


def _create(path: str) -> None:
    """Make the file, for its owner alone, and make sure that a crash of the machine does not take it away again."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    with _closed_after(os.open(os.path.dirname(path), os.O_RDONLY)) as folder:
        os.fsync(folder)


@contextmanager
def _closed_after(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    with closing(connection.execute(f"PRAGMA {name}")) as cursor:
        value: int = cursor.fetchone()[0]
        return value


_open_journals: WeakSet[SqliteJournal] = WeakSet()
_forking: list[SqliteJournal] = []


def _before_fork() -> None:
    _forking.extend(_open_journals)
    for journal in _forking:
        journal.before_fork()


def _after_fork() -> None:
    while _forking:
        _forking.pop().after_fork()


if hasattr(os, "register_at_fork"):  # not where processes cannot fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
