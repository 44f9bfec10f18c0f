"""The way of the write-ahead log back into the file: in a thread of its own, beside whoever writes.

Before version 3.51.3, SQLite loses a transaction that makes the log begin anew while somebody else brings it back (see
https://sqlite.org/wal.html#walresetbug). The log cannot begin anew while a reader looks at it, nor before all of it is
in the file. So while we bring it back there is a reader from before a transaction that has written something: until it
is gone, the end of the log is in the log only. To bring back all of it, we hold the write lock instead.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from semel.errors import StoreError
from semel.stores.sqlite.connect import begin
from semel.stores.sqlite.connections import Connections

BRING_BACK = "PRAGMA wal_checkpoint(PASSIVE)"
LOG_MAX = 2048
"""After so much has been written, it is brought back."""
BEHIND_MAX = 4 * LOG_MAX
"""When so much has been written meanwhile, whoever writes has to wait for the disk."""
ANEW_FROM = 8192
"""How many pages the log has before it begins anew. For that, everybody has to wait."""


class Log:
    """`alone` keeps the other writers of this process away."""

    def __init__(self, connections: Connections, alone: Callable[[], AbstractContextManager[object]]) -> None:
        self._connections = connections
        self._alone = alone
        self._written = connections.log_pages()
        self._thread: threading.Thread | None = None

    def add(self, size: int) -> None:
        self._written += size

    @property
    def behind(self) -> bool:
        return self._written > BEHIND_MAX and self._busy()

    def catch_up(self) -> None:
        if self.behind:
            self.close()

    def close(self) -> None:
        """Wait for what is being done."""
        if (thread := self._thread) is not None:
            thread.join()

    def pin(self) -> sqlite3.Connection | None:
        """If something is to be done: a reader from before what the caller will write. `bring_back` and `unpin` end it.

        Who calls this has the write lock, and nobody else of this process has.
        """
        if self._written <= LOG_MAX or self._busy():
            return None
        connections, reader = self._connections, None
        try:
            reader = connections.take("pin", beside=True) or connections.opened("pin")
            reader.execute("BEGIN")
            reader.execute("SELECT 1 FROM sqlite_master").fetchone()
        except (StoreError, sqlite3.Error):  # whoever writes will find out, too
            connections.give_back("pin", reader, whole=False)
            return None
        return reader

    def unpin(self, reader: sqlite3.Connection) -> None:
        whole = False
        with suppress(sqlite3.Error):  # then it is closed, which is as good
            reader.execute("COMMIT")
            whole = True
        self._connections.give_back("pin", reader, whole=whole)

    def bring_back(self, reader: sqlite3.Connection) -> None:
        """All that was written before `reader`, now that something was written after it."""
        self._written = 0
        thread = threading.Thread(target=self._bring_back, args=(reader,), name="semel-sqlite-log", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # Python is about to end
            self.unpin(reader)
        else:
            self._thread = thread

    def _busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _bring_back(self, reader: sqlite3.Connection) -> None:
        with suppress(StoreError):  # if the disk is full, say: the next commit tells
            try:
                with self._connections.lend("log", beside=True) as connection:
                    [_, pages, _] = connection.execute(BRING_BACK).fetchone()
            finally:
                self.unpin(reader)
            if pages > ANEW_FROM:
                self._bring_back_all()

    def _bring_back_all(self) -> None:
        """The next who writes will begin the log anew."""
        with self._alone(), self._connections.lend("write") as writing:
            begin(writing, self._connections.settings)
            with self._connections.lend("log", beside=True) as connection:
                connection.execute(BRING_BACK)
            writing.execute("ROLLBACK")
