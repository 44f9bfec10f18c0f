"""One file as one process uses it: what both faces stand on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.core.effects import Claim, Complete, Effect, Release, Remove, Resolve
from semel.drive import drive
from semel.errors import StoreError
from semel.store import Clock, Counts, Filter, Page
from semel.stores.sqlite import inspection
from semel.stores.sqlite.connect import runner
from semel.stores.sqlite.connections import Connections
from semel.stores.sqlite.quick import perform
from semel.stores.sqlite.scripts import look_first
from semel.stores.sqlite.settings import Settings
from semel.stores.sqlite.watch import Watch
from semel.stores.sqlite.writer import Writer, failures


def migrate(settings: Settings) -> list[int]:
    """Bring the file up to date, and say which migrations that took."""
    connections = Connections(settings)
    try:
        return connections.prepare()
    finally:
        connections.close()


class Database:
    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._connections = Connections(settings)
        self._connections.prepare()
        self.watch = Watch(self._connections)
        self.writer = Writer(self._connections, clock, self._committed)

    @property
    def frozen(self) -> bool:
        """Somebody forks: whoever asks now has to wait."""
        return self._connections.frozen

    def read(self, calls: Sequence[Effect[Any]]) -> list[Any]:
        """Answer calls that write nothing, each with its reply or its own failure. No writer is waited for."""
        now_ms = self._clock()  # before the record: what was not lapsed then must not be called lapsed
        try:
            with self._connections.lend("read") as connection:
                if len(calls) == 1:
                    return [perform(connection, calls[0], now_ms)]
                connection.execute("BEGIN")
                replies = [perform(connection, call, now_ms) for call in calls]
                connection.execute("COMMIT")
                return replies
        except StoreError as error:
            return failures(error, len(calls))

    def read_at_once(self, call: Effect[Any]) -> Any:
        """The same for one call of somebody who must not wait; raises when somebody would have to be waited for.

        The connection is the one that writes at once: what it has written itself is still in its memory.
        """
        now_ms = self._clock()  # before the record, as above
        with self._connections.lend("at once") as connection:
            return perform(connection, call, now_ms)

    def write(self, calls: Sequence[Effect[Any]]) -> list[Any]:
        """Answer calls in one transaction, each with its reply or its own failure. A lone claim looks first."""
        look = look_first(calls[0]) if len(calls) == 1 else None
        if look is not None and (found := self.read([look]))[0] is not None:
            return found
        return self.writer.run(calls)

    def scan(self, filter: Filter, cursor: str | None, limit: int) -> Page:
        with self._connections.lend("read") as connection:
            return drive(inspection.scan(filter, cursor, limit, self._clock()), runner(connection))

    def counts(self) -> Counts:
        with self._connections.lend("read") as connection:
            return drive(inspection.counts(self._clock()), runner(connection))

    def close(self) -> None:
        self._connections.close()
        self.watch.wake_all()

    def _committed(self, calls: Sequence[Effect[Any]]) -> None:
        if not self.watch.wanted:
            return
        for call in calls:
            match call:
                case Complete(lease) | Release(lease):
                    self.watch.wake(lease.key)
                case Claim(key) | Resolve(key) | Remove(key):
                    self.watch.wake(key)
                case _:
                    pass
