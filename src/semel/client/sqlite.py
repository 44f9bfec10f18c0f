"""A journal in a file of its own, which survives every crash of its process and of the machine.

A call on one intent reads its row, asks the model what becomes of it, and writes that: so the file cannot differ from
the model. The reply is given after the disk has it.
"""

from __future__ import annotations

import sqlite3
from typing import TypeVar, cast

import msgspec

from semel.client.file import JournalFile
from semel.core import journal_model
from semel.core.journal import (
    CallRequest,
    IntentEntry,
    IntentId,
    IntentState,
    JournalCall,
    KeptAnswer,
    ListIntents,
    OfIntent,
    PurgeIntents,
)
from semel.core.journal_model import IntentBook
from semel.errors import RecordUnreadable
from semel.store import Clock

T = TypeVar("T")
READ = "SELECT * FROM intents WHERE namespace = ? AND name = ?"
WRITE = "INSERT OR REPLACE INTO intents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
DELETE = "DELETE FROM intents WHERE namespace = ? AND name = ?"
LIST = """SELECT * FROM intents
    WHERE namespace = ? AND name > ? AND (state = 'answered') = ? ORDER BY name LIMIT ?"""
PURGE = """DELETE FROM intents WHERE rowid IN (
    SELECT rowid FROM intents WHERE namespace = ? AND state = 'answered' AND finished_ms <= ?
    ORDER BY finished_ms, name LIMIT ?)"""


class SqliteJournal:
    """Threads and processes may share it."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._file, self._clock = JournalFile(path), clock
        with self._file.transaction():
            pass  # what is wrong with the file is said before there is anything to send

    def answer(self, call: JournalCall[T]) -> T:
        call = call.checked()
        with self._file.transaction() as connection:
            return self._answer(connection, call)

    def close(self) -> None:
        """Close the file. The next call opens it again."""
        self._file.close()

    def _answer(self, connection: sqlite3.Connection, call: JournalCall[T]) -> T:
        now_ms = self._clock()  # inside the transaction: calls of all processes have their times in their order
        if isinstance(call, ListIntents):
            rows = connection.execute(LIST, (call.namespace, call.after, call.answered, call.limit)).fetchall()
            return cast("T", tuple(map(self._entry, rows)))
        if isinstance(call, PurgeIntents):
            gone = connection.execute(PURGE, (call.namespace, now_ms - call.older_ms, call.limit))
            return cast("T", gone.rowcount)
        assert isinstance(call, OfIntent)
        name = call.id
        row = connection.execute(READ, (name.namespace, name.name)).fetchone()
        before = IntentBook() if row is None else IntentBook().but(self._entry(row))
        after, reply = journal_model.answer(before, call, now_ms)
        entry = after.entries.get(name)
        if entry is None and row is not None:
            connection.execute(DELETE, (name.namespace, name.name))
        elif entry is not None and after is not before:
            connection.execute(WRITE, _row(entry))
        return cast("T", reply)

    def _entry(self, row: tuple[object, ...]) -> IntentEntry:
        try:
            namespace, name, key, state, created_ms, max_age_ms, attempts, owner, until_ms, finished_ms, error = row[
                :-2
            ]
            request = msgspec.msgpack.decode(cast("bytes", row[-2]), type=CallRequest)
            answer = None if row[-1] is None else msgspec.msgpack.decode(cast("bytes", row[-1]), type=KeptAnswer)
            fields = (created_ms, max_age_ms, attempts, owner, until_ms, finished_ms, answer, error)
            entry = IntentEntry(
                IntentId(cast("str", name), cast("str", namespace)), cast("str", key), request, IntentState(state),
                *cast("tuple[int, int, int, str, int, int, KeptAnswer | None, str]", fields),
            )  # fmt: skip
        except (msgspec.MsgspecError, ValueError, TypeError) as error_found:
            raise RecordUnreadable(
                f"the intent {row[1]!r} in {self._file.path} cannot be read by this version, so nothing is sent for "
                "it: restore the file from a backup, or upgrade semel"
            ) from error_found
        return entry


def _row(entry: IntentEntry) -> tuple[object, ...]:
    return (
        entry.id.namespace,
        entry.id.name,
        entry.key,
        entry.state.value,
        entry.created_ms,
        entry.max_age_ms,
        entry.attempts,
        entry.owner,
        entry.lease_until_ms,
        entry.finished_ms,
        entry.error,
        msgspec.msgpack.encode(entry.request),
        None if entry.answer is None else msgspec.msgpack.encode(entry.answer),
    )
