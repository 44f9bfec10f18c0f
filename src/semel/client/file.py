"""The file of a journal: how it is made, opened and locked, and what its errors mean. Its calls are in `sqlite`.

Each transaction is written to the disk before it ends (WAL, `synchronous=FULL`), and only one is under way at a time.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

from semel.client import schema
from semel.codecs.seal import Seal
from semel.errors import StoreMisconfigured, StoreUnavailable

BUSY_TIMEOUT_S, RETRY_S = 10.0, 0.005
MODE = 0o600
Identity = tuple[tuple[int, int], ...]


class JournalFile:
    """Threads of a process share one connection; processes share the file."""

    def __init__(self, path: str, seal: Seal | None = None) -> None:
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self.path = os.path.abspath(path)  # a later chdir must not mean another file
        self._seal = seal
        self._companions: tuple[str, ...] = ()
        self._identity: Identity = ()
        _open_files.add(self)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The only transaction on the file, in this process and in all others. It is durable when the block ends."""
        with self._lock, self._errors():
            connection = self._open()
            try:
                connection.execute("BEGIN IMMEDIATE")
                schema.check_version(connection, self.path)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                self.close()  # which rolls back
                raise

    def close(self) -> None:
        """Close the file. The next transaction opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def __del__(self) -> None:
        """A journal lives as long as its program, so a program need not close it. From 3.13 on Python would warn."""
        self.close()

    def before_fork(self) -> None:
        """SQLite must not see a fork: the child would have the memory of locks that it does not hold."""
        self._lock.acquire()
        self.close()

    def after_fork(self) -> None:
        self._lock.release()

    def _open(self) -> sqlite3.Connection:
        """The connection, to the files that are at the path."""
        if self._connection is not None:
            if self._look() != self._identity:
                raise StoreUnavailable(
                    f"{self.path}, its -wal or its -shm was removed or replaced while this process had it open, and "
                    "its intents are not in a new file: put it back, then restart every process that uses it"
                )
            return self._connection
        _create(self.path)
        connection = sqlite3.connect(
            f"{Path(self.path).as_uri()}?mode=rw",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            schema.check_owner(connection, self.path)  # before anything is written to it
            if _turn_to_wal(connection) != "wal":
                raise StoreMisconfigured(
                    f"{self.path} cannot be written to in WAL mode: its file system does not allow it. "
                    "Name a file on a local disk"
                )
            connection.execute("PRAGMA synchronous = FULL")
            schema.bring_up_to_date(connection)
            schema.check_mark(connection, self.path, self._seal)
        except BaseException:
            connection.close()
            raise
        real = os.path.realpath(self.path)  # SQLite keeps its own files beside the file itself, not beside a link to it
        self._companions = (f"{real}-wal", f"{real}-shm")
        self._identity = self._look()
        self._connection = connection
        return connection

    def _look(self) -> Identity:
        """Which files are at the path."""
        return tuple(map(_identity, (self.path, *self._companions)))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What SQLite and the system raise in the block is raised as one of ours."""
        try:
            yield
        except sqlite3.Error as error:
            raise meaning(error, self.path) from error
        except OSError as error:
            raise StoreMisconfigured(
                f"the journal {self.path} cannot be opened: {_way_out(error, self.path)}. Nothing is sent without it"
            ) from error


def meaning(error: sqlite3.Error, path: str) -> StoreUnavailable | StoreMisconfigured:
    """What an error of SQLite means. Before the first attempt of a call, it also means that nothing was sent."""
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable(
                f"the disk of the journal {path} is full, so nothing is sent: free some space, or purge "
                "answered intents"
            )
        case sqlite3.SQLITE_IOERR:
            return StoreUnavailable(
                f"the journal {path} failed, so nothing is sent: {error}. Check its disk, how full it is, its quota "
                "and the limit on file sizes"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
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


def _way_out(error: OSError, path: str) -> str:
    folder = os.path.dirname(path)
    match error:
        case FileNotFoundError():
            return f"make its folder {folder} first"
        case NotADirectoryError():
            return f"{folder} is no folder"
        case IsADirectoryError():
            return "it is a folder, so name a file in it"
        case PermissionError():
            return f"give this process the right to write to the folder {folder}"
        case _:
            return str(error.strerror)


def _turn_to_wal(connection: sqlite3.Connection) -> str:
    """SQLite does not wait here for other processes that begin the same file, whatever its time-out says."""
    due_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            return mode
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > due_s:
                raise
        time.sleep(RETRY_S)


# Closing any descriptor of a file drops all locks that this process has on it. So the file is made, and the descriptor
# closed, before another thread can be past this point and have the file open.
_creating = threading.Lock()


def _create(path: str) -> None:
    """Make the file, for its owner alone, and make sure that a crash of the machine does not take it away again."""
    with _creating:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, MODE)
        except FileExistsError:
            if os.path.isdir(path):
                raise IsADirectoryError from None
            return
        try:
            os.fchmod(descriptor, MODE)  # a umask takes bits away; SQLite gives the mode on to -wal and -shm
        finally:
            os.close(descriptor)
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


_open_files: WeakSet[JournalFile] = WeakSet()
_forking: list[JournalFile] = []


def _before_fork() -> None:
    _forking.extend(_open_files)
    for file in _forking:
        file.before_fork()


def _after_fork() -> None:
    while _forking:
        _forking.pop().after_fork()


if hasattr(os, "register_at_fork"):  # not where processes cannot fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
