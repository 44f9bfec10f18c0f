"""One file as one process uses it: what both faces stand on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from semel.core.effects import Effect
from semel.errors import StoreError
from semel.runtime.drive import drive
from semel.store import Clock, Counts, Filter, Page
from semel.stores.sqlite import operate, outbox
from semel.stores.sqlite.answers import UNSEEN, UNWRITTEN, CallFailed, Reply, look
from semel.stores.sqlite.connections import SqliteConnections
from semel.stores.sqlite.driver import damaged_text, runner
from semel.stores.sqlite.settings import SqliteSettings
from semel.stores.sqlite.watch import SqliteWatch
from semel.stores.sqlite.writer import Writer

T = TypeVar("T")


def migrate(settings: SqliteSettings) -> list[int]:
    """Bring the file up to date, and say which migrations that took."""
    connections = SqliteConnections(settings)
    try:
        return connections.prepare()
    finally:
        connections.close()


class Database:
    def __init__(self, settings: SqliteSettings, clock: Clock | None) -> None:
        self.connections = SqliteConnections(settings)
        self.connections.prepare()
        self._clock = clock = clock or self.connections.find_clock()
        self.watch = SqliteWatch(self.connections)
        self.writer = Writer(self.connections, clock, self.watch.wake_written)
        self.commits_at_once = settings.synchronous == "normal"
        """With `full`, each commit waits for the disk."""

    def look(self, calls: Sequence[Effect[Any]]) -> list[Reply]:
        """Answer calls that need not write; no lock is waited for. What fails for several is to be asked one by one."""
        try:
            with self.connections.lend("read") as connection:
                return look(connection, calls, self._clock())
        except StoreError as error:
            if len(calls) > 1:  # one of their rows may be damaged, which concerns one caller
                raise
            return [CallFailed(error)]

    def answer_at_once(self, calls: Sequence[Effect[Any]]) -> list[Reply]:
        """For the event loop: look, and write what is left in one transaction, unless that would have to wait.

        What is unanswered then is left to threads. The connection reads and writes: what it has written itself is
        still in its memory.
        """
        replies: list[Reply] = [UNSEEN] * len(calls)
        try:
            with self.connections.lend("at once") as connection:
                replies = look(connection, calls, self._clock())
                left = [call for call, reply in zip(calls, replies, strict=True) if reply is UNWRITTEN]
                if left and self.commits_at_once and (written := self.writer.write_at_once(connection, left)):
                    answers = iter(written)
                    replies = [next(answers) if reply is UNWRITTEN else reply for reply in replies]
        except Exception:
            pass  # rolled back, or kept: a thread asks again, and finds out whose fault it was
        return replies

    def scan(self, filter: Filter, cursor: str | None, limit: int) -> Page:
        with self.connections.lend("read") as connection, damaged_text(connection):
            return drive(operate.scan(filter, cursor, limit, self._clock()), runner(connection))

    def counts(self) -> Counts:
        with self.connections.lend("read") as connection:
            return drive(operate.counts(self._clock()), runner(connection))

    def ask_outbox(self, call: Effect[T]) -> T:
        """Answer a call that only reads."""
        with self.connections.lend("read") as connection, damaged_text(connection):
            reply: T = drive(outbox.answer(call, self._clock()), runner(connection))
            return reply

    def outbox_version(self) -> object:
        """Equal to the one before if nothing was written to the file since."""
        with self.connections.lend("watch") as connection:
            [version] = connection.execute("PRAGMA data_version").fetchone()
            return connection, version

    def close(self) -> None:
        self.writer.log.wait()
        self.connections.close()
        self.watch.wake_all()
