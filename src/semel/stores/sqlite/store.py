"""The sync face: for the threads of any number of processes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from semel.core.effects import Claim, Effect, Read
from semel.core.outbox import checked_call
from semel.core.records import Key, Record
from semel.errors import StoreError
from semel.runtime.local import PerProcess
from semel.store import Clock, Counts, Filter, Finding, Migration, Page
from semel.stores.faces import Face
from semel.stores.sql.migrations import printable
from semel.stores.sqlite.answers import Pending, value_of
from semel.stores.sqlite.database import Database, migrate
from semel.stores.sqlite.doctor import examine
from semel.stores.sqlite.outbox import look_for_messages, only_reads
from semel.stores.sqlite.schema import MIGRATIONS
from semel.stores.sqlite.scripts import Purge
from semel.stores.sqlite.settings import SqliteSettings

T = TypeVar("T")
PURGE_AT_ONCE = 500
"""A purge is cut into transactions of this size, with room for others between them."""


class SqliteStore(Face):
    def __init__(self, settings: SqliteSettings | str, *, clock: Clock | None = None) -> None:
        self._settings = SqliteSettings(settings) if isinstance(settings, str) else settings
        self._database = PerProcess(lambda: Database(self._settings, clock))

    def _call(self, call: Effect[T]) -> T:
        database = self._database.get()
        if type(call) in (Claim, Read):  # a replay must not wait for the write lock
            [reply] = database.look([call])
            if not isinstance(reply, Pending):
                return cast(T, value_of(reply))
        return database.writer.call(call)

    def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        changed = threading.Event()
        try:
            with self._database.get().watch.watching(key, owner, changed.set):
                return not held(self.get(key), owner) or changed.wait(timeout_ms / 1000)
        except StoreError:
            return True  # awake early: the next question is answered with this error

    def purge(self, *, limit: int) -> int:
        gone = 0
        while gone < limit:
            size = min(limit - gone, PURGE_AT_ONCE)
            found = self._call(Purge(size))
            gone += found
            if found < size:
                break
        return gone

    def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        return self._database.get().scan(filter, cursor, limit)

    def counts(self) -> Counts:
        return self._database.get().counts()

    def outbox(self, call: Effect[T]) -> T:
        checked, database = checked_call(call), self._database.get()
        if only_reads(checked):
            return database.ask_outbox(checked)
        if (looks := look_for_messages(checked)) is not None:
            found: Any = database.ask_outbox(looks)
            if found is not None:
                return cast(T, found)
        return database.writer.call(checked)

    def migrations(self) -> Sequence[Migration]:
        return printable(MIGRATIONS)

    def migrate(self) -> Sequence[int]:
        return migrate(self._settings)

    def examine(self) -> Sequence[Finding]:
        return list(examine(self._settings))

    def close(self) -> None:
        database = self._database.take()
        if database is not None:
            database.close()


def held(record: Record | None, owner: str) -> bool:
    return record is not None and record.in_progress() and record.owner == owner
