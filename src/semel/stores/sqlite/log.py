"""The way of the write-ahead log back into the file: in a thread of its own, beside the writer.

Before version 3.51.3, SQLite loses a transaction that makes the log begin anew while another connection brings it back
(see https://sqlite.org/wal.html#walresetbug). A reader keeps that from happening. If it looks at the log, no writer can
begin it anew. If it need not, because all of it was in the file, there is nothing to bring back. So there is always one
while we do. To bring back all of it we hold the write lock instead, so that no connection writes.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from semel.errors import StoreError
from semel.stores.sqlite.connections import SqliteConnections

BRING_BACK = "PRAGMA wal_checkpoint(PASSIVE)"
CALLS_MAX = 2048
"""After so many calls (see `weight`), what they have written is brought back."""
BEHIND_MAX = 4 * CALLS_MAX
"""When there were so many meanwhile, the writer has to wait for the disk."""
PAGES_MAX = 8192
"""When the log has so many pages it has to begin anew, for which all callers wait."""


class Log:
    """Of one process. Several may share the file: each brings back what it finds."""

    def __init__(self, connections: SqliteConnections) -> None:
        self._connections = connections
        self._calls = connections.log_pages()  # a page is about a call
        self._thread: threading.Thread | None = None
        self.too_long = False
        """All of it has to be brought back, by the next writer that may wait."""

    def add(self, calls: int) -> None:
        self._calls += calls
        if self._calls > CALLS_MAX and not self._working():
            self._calls = 0
            with suppress(RuntimeError):  # no thread to be had, for instance because Python is about to end
                thread = threading.Thread(target=self._bring_back, name="semel-sqlite-log", daemon=True)
                thread.start()
                self._thread = thread

    @property
    def behind(self) -> bool:
        return self._calls > BEHIND_MAX and self._working()

    def wait(self) -> None:
        """Until what has begun is done."""
        if (thread := self._thread) is not None:
            thread.join()

    def bring_back_all(self) -> None:
        """The caller has the write lock, and must let it go without having written: the next writer begins anew."""
        self.too_long = False
        with suppress(StoreError), self._connections.lend("log", beside=True) as connection:
            connection.execute(BRING_BACK)

    def _working(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _bring_back(self) -> None:
        with suppress(StoreError), self._connections.lend("pin") as reader:  # a disk that is full tells the writer
            reader.execute("BEGIN")
            reader.execute("SELECT 1 FROM sqlite_master").fetchone()
            with self._connections.lend("log", beside=True) as connection:
                [_, pages, _] = connection.execute(BRING_BACK).fetchone()
            reader.execute("COMMIT")
            self.too_long = pages > PAGES_MAX
