"""The sync face of the MariaDB store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from semel.core.effects import Doubts, Effect
from semel.core.outbox import checked_call
from semel.core.records import Key
from semel.runtime.local import PerProcess
from semel.store import Clock, Counts, Filter, Finding, Migration, Page
from semel.stores.faces import Face
from semel.stores.mariadb import operate, outbox, schema, scripts
from semel.stores.mariadb.doctor import examine
from semel.stores.mariadb.doubts import doubts
from semel.stores.mariadb.driver import MariadbLink
from semel.stores.mariadb.settings import MariadbSettings
from semel.stores.poll_watch import PollingWatch
from semel.stores.sql.pool import Connections
from semel.stores.sql.statements import Script
from semel.stores.waiters import changed_key

T = TypeVar("T")


class MariadbStore(Face):
    """For threads of any number of processes. Connects on first use, in each process that uses it."""

    def __init__(self, settings: MariadbSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._connections = PerProcess(
            lambda: Connections(
                settings, lambda due_s: MariadbLink.open(settings, due_s), lambda: schema.ready(settings)
            )
        )
        self._watch = PerProcess(PollingWatch)

    def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        return self._watch.get().wait(key, owner, timeout_ms / 1000, self.get)

    def doubts(self, before: frozenset[str] | None) -> frozenset[str]:
        return self._run(doubts([Doubts(before)], self._connections.get().lost_backends))[0]

    def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        return self._run(operate.scan(filter, cursor, limit, self._now_ms()))

    def counts(self) -> Counts:
        return self._run(operate.counts(self._now_ms()))

    def purge(self, *, limit: int) -> int:
        return self._run(scripts.purge(limit, self._now_ms()))

    def outbox(self, call: Effect[T]) -> T:
        reply: T = self._run(outbox.answer(checked_call(call), self._now_ms()))
        return reply

    def migrations(self) -> Sequence[Migration]:
        return schema.printable()

    def migrate(self) -> Sequence[int]:
        return self._connections.get().run_alone(schema.migrate(self._settings))

    def examine(self) -> Sequence[Finding]:
        return self._connections.get().with_link(lambda run: list(examine(self._settings, run)))

    def close(self) -> None:
        connections = self._connections.take()
        if connections is not None:
            connections.close()

    def _call(self, call: Effect[T]) -> T:
        reply: T = self._run(scripts.answer([call], self._now_ms()))[0]
        if (key := changed_key(call, reply)) is not None:
            self._watch.get().waiters.wake(key)
        return reply

    def _run(self, script: Script[T]) -> T:
        return self._connections.get().run(script)

    def _now_ms(self) -> int | None:
        return None if self._clock is None else self._clock()
