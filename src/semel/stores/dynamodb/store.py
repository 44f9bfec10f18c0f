"""The sync face of the DynamoDB store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from semel.core.effects import Effect
from semel.core.records import Key
from semel.runtime.local import PerProcess
from semel.store import Clock, Counts, Filter, Finding, Migration, Page
from semel.stores.dynamodb import operate, schema
from semel.stores.dynamodb.doctor import examine
from semel.stores.dynamodb.driver import DynamodbLink
from semel.stores.dynamodb.settings import DynamodbSettings
from semel.stores.faces import Face
from semel.stores.poll_watch import PollingWatch
from semel.stores.waiters import changed_key

T = TypeVar("T")


class DynamodbStore(Face):
    """For threads of any number of processes. Connects on first use, in each process that uses it."""

    def __init__(self, settings: DynamodbSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._link = PerProcess(lambda: DynamodbLink(settings, clock))
        self._watch = PerProcess(PollingWatch)

    def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        return self._watch.get().wait(key, owner, timeout_ms / 1000, self.get)

    def doubts(self, before: frozenset[str] | None) -> frozenset[str]:
        """Wait for what this process itself has under way: DynamoDB has no list of it."""
        self._link.get().await_unanswered()
        return frozenset()

    def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        """Reads the table from the cursor on until the page is full: a filter that matches little reads all of it."""
        link = self._link.get()
        return link.run(operate.scan(filter, cursor, limit, link.now_ms), is_long=True)

    def counts(self) -> Counts:
        """Reads the whole table: for an operator, not for every request."""
        link = self._link.get()
        return link.run(operate.counts(link.now_ms), is_long=True)

    def purge(self, *, limit: int) -> int:
        """Reads the whole table, or until `limit` is reached. DynamoDB collects by itself, without a charge."""
        link = self._link.get()
        return link.run(link.purge(limit), is_long=True)

    def migrations(self) -> Sequence[Migration]:
        return schema.printable(self._settings)

    def migrate(self) -> Sequence[int]:
        return self._link.get().run_alone(schema.migrate(self._settings))

    def examine(self) -> Sequence[Finding]:
        link = self._link.get()
        return link.run_alone(examine(self._settings, link.clock))

    def close(self) -> None:
        if link := self._link.take():
            link.close()

    def _call(self, call: Effect[T]) -> T:
        link = self._link.get()
        reply = link.run(link.answer(call))
        if (key := changed_key(call, reply)) is not None:
            self._watch.get().waiters.wake(key)
        return reply
