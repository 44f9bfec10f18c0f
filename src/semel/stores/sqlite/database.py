"""One file as one process uses it: what both faces stand on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from semel.core.effects import Claim, Complete, Effect, Release, Remove, Resolve
from semel.errors import StoreError
from semel.runtime.drive import drive
from semel.store import Clock, Counts, Filter, Page
from semel.stores.sqlite import operate
from semel.stores.sqlite.connections import Connections
from semel.stores.sqlite.driver import runner
from semel.stores.sqlite.quick import LATER, UNSEEN, look
from semel.stores.sqlite.scripts import Look, look_first
from semel.stores.sqlite.settings import Settings
from semel.stores.sqlite.watch import Watch
from semel.stores.sqlite.writer import Writer


def migrate(settings: Settings) -> list[int]:
    """Bring the file up to date, and say which migrations that took."""
    connections = Connections(settings)
    try:
        return connections.prepare()
    finally:
        connections.close()


@contextmanager
def damaged_text(connection: sqlite3.Connection) -> Iterator[None]:
    """Let text that is not UTF-8 come as bytes: one damaged row must not hide all others from an operator."""

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


class Begun:
    """A transaction that is written and not committed. Nobody else writes until it is ended."""

    __slots__ = ("_calls", "_connection", "_connections", "_writer", "replies")

    def __init__(
        self,
        writer: Writer,
        connections: Connections,
        connection: sqlite3.Connection,
        calls: Sequence[Effect[Any]],
        replies: list[Any],
    ) -> None:
        self._writer = writer
        self._connections = connections
        self._connection = connection
        self._calls = calls
        self.replies = replies

    def commit(self) -> bool:
        """False: it was rolled back, or kept; whoever asks again finds out."""
        whole = False
        try:
            self._writer.commit(self._connection, self._calls)
            whole = True
        except Exception:
            pass
        finally:
            self._connections.give_back("at once", self._connection, whole=whole)
        return whole

    def undo(self) -> None:
        self._connections.give_back("at once", self._connection, whole=False)
        self._writer.forget()


class Database:
    def __init__(self, settings: Settings, clock: Clock | None) -> None:
        self._connections = Connections(settings)
        self._connections.prepare()
        self._clock = clock = clock or self._connections.find_clock()
        self.watch = Watch(self._connections)
        self.writer = Writer(self._connections, clock, self._committed)

    @property
    def frozen(self) -> bool:
        """Somebody forks: whoever asks now has to wait."""
        return self._connections.frozen

    def read(self, calls: Sequence[Effect[Any]]) -> list[Any]:
        """Answer calls that write nothing; nobody is waited for. What fails for several is to be asked one by one."""
        try:
            with self._connections.lend("read") as connection:
                replies = self._look(connection, [call.claim if isinstance(call, Look) else call for call in calls])
        except StoreError as error:
            if len(calls) > 1:  # one of their rows may be damaged, and that is one caller's affair
                raise
            return [error]
        return [None if reply is LATER else reply for reply in replies]

    def at_once(self, calls: Sequence[Effect[Any]], *, writing: bool) -> list[Any]:
        """The same for who must not wait; with `writing`, in one transaction for what has to be written.

        In the place of a reply `LATER` and `UNSEEN` say what is left to who may wait. The connection reads and writes:
        what it has written itself is still in its memory.
        """
        connections, whole = self._connections, False
        replies: list[Any] = [UNSEEN] * len(calls)
        connection = connections.take("at once")
        try:
            if connection is None:
                connection = connections.opened("at once")
            replies = self._look(connection, calls)
            if writing:
                replies = self._written(connection, calls, replies)
            whole = True
        except Exception:
            pass  # rolled back, or kept: whoever may wait asks again, and finds out whose fault it was
        finally:
            connections.give_back("at once", connection, whole=whole)
        return replies

    def _look(self, connection: sqlite3.Connection, calls: Sequence[Effect[Any]]) -> list[Any]:
        # The time before the record: what was not lapsed then must not be called lapsed.
        return look(connection, calls, self._clock())

    def _written(
        self, connection: sqlite3.Connection, calls: Sequence[Effect[Any]], replies: Sequence[Any]
    ) -> list[Any]:
        left = [call for call, reply in zip(calls, replies, strict=True) if reply is LATER]
        written = self.writer.apply(connection, left) if left else None
        if written is None:
            return list(replies)
        self.writer.commit(connection, left)
        told = iter(written)
        return [next(told) if reply is LATER else reply for reply in replies]

    def begin(self, calls: Sequence[Effect[Any]]) -> Begun | None:
        """Write at once what a thread will commit. None: even for that somebody would have to be waited for."""
        connections, whole = self._connections, False
        begun: Begun | None = None
        connection = connections.take("at once")
        try:
            if connection is None:
                connection = connections.opened("at once")
            replies = self.writer.apply(connection, calls)
            if replies is not None:
                begun = Begun(self.writer, connections, connection, calls, replies)
            whole = True
        except Exception:
            pass  # as above
        finally:
            if begun is None:
                connections.give_back("at once", connection, whole=whole)
        return begun

    def write(self, calls: Sequence[Effect[Any]]) -> list[Any]:
        """Answer calls in one transaction, each with its reply or its own failure. A lone claim looks first."""
        look = look_first(calls[0]) if len(calls) == 1 else None
        if look is not None and (found := self.read([look]))[0] is not None:
            return found
        return self.writer.run(calls)

    def scan(self, filter: Filter, cursor: str | None, limit: int) -> Page:
        with self._connections.lend("read") as connection, damaged_text(connection):
            return drive(operate.scan(filter, cursor, limit, self._clock()), runner(connection))

    def counts(self) -> Counts:
        with self._connections.lend("read") as connection:
            return drive(operate.counts(self._clock()), runner(connection))

    def close(self) -> None:
        self.writer.log.wait()
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
