"""The open connections of one process, lent out one user at a time, and closed before every fork.

SQLite must not see a fork. It remembers in memory which locks the process has, and the child inherits the memory but
not the locks: a new connection in the child looks protected and is not. When the parent then closes its own, it takes
the write-ahead log away from under the child, and what the child was told is stored is lost. So nothing is open while
a process forks, and both sides open again when they need to.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from typing import Literal, get_args
from weakref import WeakSet

from msgspec import Struct

from semel.errors import StoreError
from semel.runtime.drive import drive
from semel.store import Clock
from semel.stores.sqlite.clock import Anchor, clock_of, find_anchor
from semel.stores.sqlite.driver import (
    anchor,
    cause_of,
    check_version,
    create,
    creating,
    meaning,
    open_connection,
    runner,
    set_up,
)
from semel.stores.sqlite.files import Files
from semel.stores.sqlite.settings import SqliteSettings

Purpose = Literal["read", "write", "at once", "watch", "log", "pin"]
PRAGMAS: dict[Purpose, tuple[str, ...]] = {
    # `patiently` waits for others. No commit brings the log back by the way: see `log`.
    "write": ("busy_timeout = 0", "wal_autocheckpoint = 0"),
    "at once": ("wal_autocheckpoint = 0",),
}
PAGE = 4096
"""What SQLite's pages have, unless another program made the file."""
IDLE_MAX = 8
"""How many connections stay open per purpose; more are opened when more threads read at once, and closed after use."""
FORK_WAIT_S = 10.0
"""How long a fork waits for calls under way: the bound is for a signal handler that forks in the middle of one."""


class SqliteConnections:
    def __init__(self, settings: SqliteSettings) -> None:
        self.settings = settings
        self.files = Files(settings.path)
        self._anchor: Anchor | None = None
        self._lock = threading.RLock()  # for a signal handler that forks
        self._changed = threading.Condition(self._lock)
        self._idle: dict[Purpose, list[sqlite3.Connection]] = {purpose: [] for purpose in get_args(Purpose)}
        self._lent = 0
        self.frozen = False
        self._closed = False
        with _registry:
            _all.add(self)

    def prepare(self) -> list[int]:
        """Make sure that the file is there and up to date; says which migrations were applied."""
        check_version()
        create(self.settings.path)
        with self.lend("write") as connection:
            applied = set_up(connection, self.settings)
            self._anchor = anchor(connection, self.settings)
            self.files.add_companions()
            return applied

    def find_clock(self) -> Clock:
        """The clock that all processes share which have this file open. It must be prepared."""
        assert self._anchor is not None
        return clock_of(self._anchor)

    def lend(self, purpose: Purpose, *, beside: bool = False) -> Lent:
        """Lend a connection, and turn its errors into ours. After any failure it is closed, which rolls back.

        `beside` another one that the same thread has: a fork waits for both, so neither waits for the fork.
        """
        return Lent(self, purpose, beside)

    def log_pages(self) -> int:
        """How long the log has been. What is in it may be in the file already."""
        try:
            return os.path.getsize(f"{self.settings.path}-wal") // PAGE
        except OSError:
            return 0

    def freeze(self) -> None:
        """Close everything, and lend nothing until `thaw`."""
        with self._changed:
            self.frozen = True
            self._changed.wait_for(lambda: not self._lent, FORK_WAIT_S)
            self._close_idle()

    def thaw(self) -> None:
        with self._changed:
            self.frozen = False
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._close_idle()

    def take(self, purpose: Purpose, *, beside: bool) -> sqlite3.Connection:
        """One that is idle, or else a new one. `give_back` must follow."""
        with self._lock:
            while self.frozen and not beside:
                self._changed.wait()
            self._lent += 1
            if idle := self._idle[purpose]:
                return idle.pop()
        try:
            return self.open_new(purpose)
        except BaseException:
            self.give_back(purpose, None, whole=False)
            raise

    def open_new(self, purpose: Purpose) -> sqlite3.Connection:
        with self._lock:  # the last one that is closed takes the log with it
            self.files.check_before_opening()
        try:
            connection = open_connection(self.settings, *PRAGMAS.get(purpose, ()), patient=purpose != "at once")
            try:
                self._recognise(connection)
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise self.explain(error) from cause_of(error)
        return connection

    def _recognise(self, connection: sqlite3.Connection) -> None:
        """Refuse another file than the one that was prepared, and count the connection.

        A number of an inode is free again when nothing has the file open. The mark of a file is never used again.
        """
        if self._anchor is not None and drive(find_anchor(), runner(connection)) != self._anchor:
            raise self.files.replaced()
        with self._lock:
            self.files.add()

    def explain(self, error: sqlite3.Error) -> StoreError:
        """What an error of SQLite means. That the files are gone explains most of them better than SQLite does."""
        with self._lock:
            loss = self.files.find_loss()
        return loss or meaning(error, self.settings)

    def give_back(self, purpose: Purpose, connection: sqlite3.Connection | None, *, whole: bool) -> None:
        with self._lock:
            idle = self._idle[purpose]
            if connection is not None:
                if whole and not self._closed and len(idle) < IDLE_MAX:
                    idle.append(connection)
                else:
                    self._close(connection)
            self._lent -= 1
            if self.frozen:
                self._changed.notify_all()

    def _close_idle(self) -> None:
        for idle in self._idle.values():
            while idle:
                self._close(idle.pop())

    def _close(self, connection: sqlite3.Connection) -> None:
        self.files.remove()
        connection.close()


class Lent(Struct, gc=False):
    """A connection for one user. A class and no generator: every call takes one."""

    connections: SqliteConnections
    purpose: Purpose
    beside: bool
    connection: sqlite3.Connection | None = None

    def __enter__(self) -> sqlite3.Connection:
        connection = self.connection = self.connections.take(self.purpose, beside=self.beside)
        return connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self.connections.give_back(self.purpose, self.connection, whole=error is None)
        if isinstance(error, sqlite3.Error):
            raise self.connections.explain(error) from cause_of(error)


_registry = threading.Lock()
_all: WeakSet[SqliteConnections] = WeakSet()


def _before_fork() -> None:
    _registry.acquire()  # held across the fork: nothing may be opened meanwhile
    creating.acquire()
    for connections in _all:
        connections.freeze()


def _after_fork_in_parent() -> None:
    for connections in _all:
        connections.thaw()
    creating.release()
    _registry.release()


def _after_fork_in_child() -> None:
    for connections in _all:
        connections.frozen = True  # for ever: no thread may take the parent's for its own
    _all.clear()  # their locks may be held by threads that do not exist here; `PerProcess` makes new ones
    creating.release()
    _registry.release()


if hasattr(os, "register_at_fork"):  # not where processes cannot fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
