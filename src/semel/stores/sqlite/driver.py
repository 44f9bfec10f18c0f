"""How the file is opened, and what SQLite's errors mean. No other module sees a `sqlite3.Error`."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from semel.core.effects import Effect
from semel.errors import StoreError, StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.runtime.drive import drive
from semel.stores.sql.migrations import apply, check
from semel.stores.sql.statements import Rows, Statement
from semel.stores.sqlite import schema
from semel.stores.sqlite.clock import Anchor, find_anchor, set_anchor
from semel.stores.sqlite.settings import SqliteSettings

RETRY_S = 0.001
NO_LIMIT = float("inf")
FIRST_LOOK = "SELECT 1 FROM sqlite_master LIMIT 1"
"""SQLite opens the log and the shared memory with the first statement that reads."""
NO_TEXT = re.compile(r"Could not decode to UTF-8 column '(\w+)'")
"""The words of Python's sqlite3, which are followed by the bytes."""
T = TypeVar("T")


@contextmanager
def store_errors(settings: SqliteSettings) -> Iterator[None]:
    """What SQLite raises in the block is raised as one of ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise meaning(error, settings) from cause_of(error)


def cause_of(error: sqlite3.Error) -> sqlite3.Error | None:
    """What may be logged beside our own words: not the bytes of a damaged record."""
    return None if NO_TEXT.match(str(error)) else error


def meaning(error: sqlite3.Error, settings: SqliteSettings) -> StoreError:
    """The one place where an error of SQLite becomes one of ours."""
    path, folder = settings.path, os.path.dirname(settings.path)
    if found := NO_TEXT.match(str(error)):
        return StoreUnavailable(
            f"{path} is damaged: the column {found[1]} of a record should be text and is not. Its bytes are not shown, "
            "because answers may be among them. Restore the file from a backup, or delete the record in it"
        )
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            waited = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY
            return (StoreTimeout if waited else StoreUnavailable)(
                f"{path} was locked by another process for more than {settings.busy_timeout_ms} ms: "
                "look for a program that keeps a write transaction open on it, or raise busy_timeout_ms"
            )
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable(
                f"there is no room left for {path}: free some space on its disk, or purge, then repeat"
            )
        case sqlite3.SQLITE_IOERR if error.sqlite_errorcode == sqlite3.SQLITE_IOERR_SHORT_READ:
            return StoreUnavailable(
                f"{path} does not have what its log should have: was {path}-wal removed while a process had it open? "
                "Stop every process that uses it, not with kill -9: the last one that ends brings what only it still "
                "has into the file; then start them again"
            )
        case sqlite3.SQLITE_IOERR:
            return StoreUnavailable(f"{path}: {error}; check its disk, its quota and the limit on file sizes")
        case sqlite3.SQLITE_NOTADB:
            return StoreMisconfigured(
                f"{path} is not an SQLite database (or it is encrypted): name another file, or move this one away"
            )
        case sqlite3.SQLITE_CORRUPT:
            return StoreUnavailable(
                f"{path} is damaged ({error}): stop everything that uses it and restore it from a backup"
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return _closed_to_us(error, path, folder)
        case _:
            return StoreUnavailable(f"{path}: {error}")


def _closed_to_us(error: sqlite3.Error, path: str, folder: str) -> StoreError:
    if not os.access(folder, os.W_OK):
        return StoreMisconfigured(
            f"the folder {folder} must be writable for this user: SQLite keeps {path}-wal and {path}-shm in it"
        )
    if not os.access(path, os.W_OK):
        return StoreMisconfigured(
            f"{path} must be writable for this user: check its owner, its mode and how its disk is mounted"
        )
    return StoreUnavailable(f"{path}: {error}; check its disk, and how many files this process has open")


def open_connection(settings: SqliteSettings, *pragmas: str, patient: bool) -> sqlite3.Connection:
    """Open the file, which must be there. Every statement commits by itself unless one says BEGIN."""
    connection = sqlite3.connect(
        f"{Path(settings.path).as_uri()}?mode=rw",
        uri=True,
        timeout=settings.busy_timeout_ms / 1000 if patient else 0,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        for pragma in (f"synchronous = {settings.synchronous}", *pragmas):
            connection.execute(f"PRAGMA {pragma}")
        if patient:
            patiently(settings, lambda: connection.execute(FIRST_LOOK).fetchone())
        else:
            connection.execute(FIRST_LOOK).fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def runner(connection: sqlite3.Connection) -> Callable[[Effect[Any]], Rows]:
    """What `drive` needs to run a script on `connection`."""

    def run(statement: Effect[Any]) -> Rows:
        assert isinstance(statement, Statement)
        return connection.execute(statement.sql, statement.params).fetchall()

    return run


@contextmanager
def damaged_text(connection: sqlite3.Connection) -> Iterator[None]:
    """Let text that is not UTF-8 come as bytes: one damaged row must not hide all others."""

    def text_or_bytes(data: bytes) -> str | bytes:
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data

    connection.text_factory = text_or_bytes
    try:
        yield
    finally:
        connection.text_factory = str


def check_version() -> None:
    if sqlite3.sqlite_version_info < schema.SQLITE_MIN:
        needed = ".".join(map(str, schema.SQLITE_MIN))
        raise StoreMisconfigured(
            f"Python was built with SQLite {sqlite3.sqlite_version}; semel needs {needed} or later: use a newer Python"
        )


def patiently(settings: SqliteSettings, act: Callable[[], T], due_s: float = NO_LIMIT) -> T:
    """Try until the file is free, at most for the busy timeout, and not after `due_s`.

    SQLite's own waiting sleeps longer and longer, so that a busy neighbour starves it, and does not cover the switch
    to WAL when several processes begin a new file.
    """
    deadline_s = min(due_s, time.monotonic() + settings.busy_timeout_ms / 1000)
    while True:
        try:
            return act()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline_s:
                raise
        time.sleep(RETRY_S)


def begin(connection: sqlite3.Connection, settings: SqliteSettings, due_s: float = NO_LIMIT) -> None:
    """Begin a transaction that writes."""
    patiently(settings, lambda: connection.execute("BEGIN IMMEDIATE"), due_s)


def begin_now(connection: sqlite3.Connection) -> bool:
    """Begin a transaction that writes, unless another connection is writing."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            return False
        raise
    return True


def set_up(connection: sqlite3.Connection, settings: SqliteSettings) -> list[int]:
    """Make the file what the store needs, whatever it is now; says which migrations were applied."""
    run = runner(connection)
    applied: list[int] = []
    patiently(settings, lambda: _use_wal(connection, settings.path))
    if patiently(settings, lambda: drive(schema.is_behind(), run)):
        begin(connection, settings)  # the second process waits here, and finds nothing to do
        applied = drive(apply(schema.MIGRATIONS), run)
        connection.execute("COMMIT")
    drive(check(schema.MIGRATIONS, settings.path), run)
    return applied


def anchor(connection: sqlite3.Connection, settings: SqliteSettings) -> Anchor:
    """What the clock of the file goes by, set by the first process after a start of the machine."""
    run = runner(connection)
    found = patiently(settings, lambda: drive(find_anchor(), run))
    if found is None:
        begin(connection, settings)
        found = drive(set_anchor(), run)
        connection.execute("COMMIT")
    return found


# Closing any descriptor of a file drops all locks that this process has on it. So the file is created, and the
# descriptor closed, while no other thread can be past this point and have the file open.
creating = threading.Lock()


def create(path: str) -> None:
    """Create the file, readable by its owner only, because answers are in it. Its companions get the same mode."""
    if os.path.isdir(path):
        raise StoreMisconfigured(f"{path} is a folder: name a file in it")
    # The log is looked for first: a process that begins a file makes the log last.
    if os.path.exists(f"{path}-wal") and not os.path.exists(path):
        raise StoreMisconfigured(
            f"{path} is gone, but its log {path}-wal is there: put the file back. To begin a new one, in which no key "
            f"is known, stop every process that uses it and remove {path}-wal and {path}-shm"
        )
    try:
        with creating, suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileNotFoundError:
        raise StoreMisconfigured(f"the folder {os.path.dirname(path)} does not exist: create it first") from None
    except PermissionError:
        raise StoreMisconfigured(f"this user may not create {path}: check the owner and mode of its folder") from None
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be created: {error.strerror}") from error


def _use_wal(connection: sqlite3.Connection, path: str) -> None:
    """Readers and the writer then do not block each other. The mode stays with the file: this acts once."""
    [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreMisconfigured(f"{path}: SQLite's WAL mode does not work there (it stays {mode!r}): use a local disk")
