"""A journal in a file of its own, which survives every crash of its process and of the machine.

A call on one intent reads its row, asks the model what becomes of it, and writes that: so the file cannot differ from
the model. The reply is given after the disk has it.
"""

from __future__ import annotations

import sqlite3
from typing import TypeVar, cast

from semel.client.file import JournalFile
from semel.client.rows import IntentRows
from semel.codecs.seal import Seal
from semel.core import journal_model
from semel.core.journal import (
    JournalCall,
    ListIntents,
    OfIntent,
    PurgeIntents,
)
from semel.core.journal_model import IntentBook
from semel.store import Clock

T = TypeVar("T")
READ = "SELECT * FROM intents WHERE namespace = ? AND name = ?"
INSERT = """INSERT INTO intents VALUES (
    :namespace, :name, :key, :state, :created_ms, :max_age_ms, :attempts, :owner, :lease_until_ms, :finished_ms,
    :request, :outcome)"""
UPDATE = """UPDATE intents SET
    state = :state, max_age_ms = :max_age_ms, attempts = :attempts, owner = :owner, lease_until_ms = :lease_until_ms,
    finished_ms = :finished_ms, outcome = :outcome
    WHERE namespace = :namespace AND name = :name"""
DELETE = "DELETE FROM intents WHERE namespace = ? AND name = ?"
LIST = """SELECT * FROM intents
    WHERE namespace = ? AND name > ? AND (state = 'answered') = ? ORDER BY name LIMIT ?"""
PURGE = """DELETE FROM intents WHERE rowid IN (
    SELECT rowid FROM intents WHERE namespace = ? AND state = 'answered' AND finished_ms <= ?
    ORDER BY finished_ms, name LIMIT ?)"""


class SqliteJournal:
    """Threads and processes may share it."""

    def __init__(self, path: str, clock: Clock, seal: Seal | None = None) -> None:
        self._file, self._clock = JournalFile(path, seal), clock
        self._rows = IntentRows(self._file.path, seal)
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
            return cast("T", tuple(map(self._rows.read, rows)))
        if isinstance(call, PurgeIntents):
            gone = connection.execute(PURGE, (call.namespace, now_ms - call.older_ms, call.limit))
            return cast("T", gone.rowcount)
        assert isinstance(call, OfIntent)
        name = call.id
        row = connection.execute(READ, (name.namespace, name.name)).fetchone()
        before = IntentBook() if row is None else IntentBook().but(self._rows.read(row))
        after, reply = journal_model.answer(before, call, now_ms)
        entry = after.entries.get(name)
        if entry is None and row is not None:
            connection.execute(DELETE, (name.namespace, name.name))
        elif entry is not None and row is None:
            connection.execute(INSERT, self._rows.columns(entry))
        elif entry is not None and after is not before:
            connection.execute(UPDATE, self._rows.changes(entry))
        return cast("T", reply)
