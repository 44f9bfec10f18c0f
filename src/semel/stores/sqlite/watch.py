"""Wakes callers that wait for a key: at once after a commit of this process, within `POLL_S` after those of others."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from semel.core.effects import Claim, Complete, Effect, Release, Remove, Resolve
from semel.core.records import Key
from semel.errors import StoreError
from semel.stores.sqlite.connections import SqliteConnections
from semel.stores.sqlite.scripts import HOLDS, named

POLL_S = 0.01


class Waiter(Struct, frozen=True, eq=False):
    """A caller that waits, until it leaves the block. `wake` is called from any thread, and perhaps more than once."""

    key: Key
    owner: str
    wake: Callable[[], None]
    watch: SqliteWatch

    def __enter__(self) -> None:
        """Nothing more: it is registered."""

    def __exit__(self, *_: object) -> None:
        self.watch.forget(self)


class SqliteWatch:
    """One thread that asks for SQLite's data version, which costs microseconds, while a caller waits."""

    def __init__(self, connections: SqliteConnections) -> None:
        self._connections = connections
        self._lock = threading.Lock()
        self._waiters: dict[Key, set[Waiter]] = {}
        self._thread: threading.Thread | None = None

    def watching(self, key: Key, owner: str, wake: Callable[[], None]) -> Waiter:
        """Call `wake` when `owner` may no longer hold `key`. Enter first, then look at the record, then sleep."""
        waiter = Waiter(key, owner, wake, self)
        with self._lock:
            self._waiters.setdefault(key, set()).add(waiter)
            if self._thread is None:
                thread = threading.Thread(target=self._poll, name="semel-sqlite-watch", daemon=True)
                thread.start()  # first: without a thread the next one must try again
                self._thread = thread
        return waiter

    def forget(self, waiter: Waiter) -> None:
        with self._lock:
            waiters = self._waiters[waiter.key]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[waiter.key]

    def wake_written(self, calls: Sequence[Effect[Any]]) -> None:
        """Wake the callers that wait for a key which these calls have written."""
        if not self._waiters:
            return
        for call in calls:
            match call:
                case Complete() | Release() | Claim() | Resolve() | Remove():
                    self.wake(call.key)
                case _:
                    pass

    def wake(self, key: Key) -> None:
        if self._waiters:
            with self._lock:
                for waiter in self._waiters.get(key, ()):
                    waiter.wake()

    def wake_all(self) -> None:
        for key in list(self._waiters):
            self.wake(key)

    def _poll(self) -> None:
        seen: tuple[sqlite3.Connection, int] | None = None
        while True:
            with self._lock:
                if not self._waiters:
                    self._thread = None
                    return
            try:
                seen = self._look(seen)
            except StoreError:
                self.wake_all()  # they ask the store themselves then, and get its error
            time.sleep(POLL_S)

    def _look(self, seen: tuple[sqlite3.Connection, int] | None) -> tuple[sqlite3.Connection, int]:
        with self._connections.lend("watch") as connection:
            [version] = connection.execute("PRAGMA data_version").fetchone()
            if seen != (connection, version):
                with self._lock:
                    held = {(waiter.key, waiter.owner) for waiters in self._waiters.values() for waiter in waiters}
                for key, owner in held:
                    if connection.execute(HOLDS, named(key, owner=owner)).fetchone() is None:
                        self.wake(key)
            return connection, version
