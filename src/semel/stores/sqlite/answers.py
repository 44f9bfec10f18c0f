"""Answers calls on one connection: `look` without the write lock, then `write` for each call that is left.

Both routes, the event loop's and the threads', end here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from msgspec import Struct

from semel.core.effects import Claim, Complete, Effect, Read
from semel.core.outbox import OutboxCall
from semel.core.records import Acquired, Key, Lease
from semel.errors import RecordUnreadable
from semel.runtime.drive import drive
from semel.stores.sql.digests import number_of
from semel.stores.sql.rows import CODES, SHORT_FORMATS, to_record
from semel.stores.sqlite import outbox
from semel.stores.sqlite.driver import damaged_text, runner
from semel.stores.sqlite.scripts import READ, SCRIPTS, named, read_several, shown

Row = tuple[Any, ...]


class Replied(Struct, frozen=True, gc=False):
    value: Any


class CallFailed(Struct, frozen=True):
    """The call failed, and its neighbours did not."""

    error: Exception


class Pending(Enum):
    UNWRITTEN = "looking was not enough: the call has to write"
    UNSEEN = "the file could not be asked"


UNWRITTEN, UNSEEN = Pending.UNWRITTEN, Pending.UNSEEN
Answer = Replied | CallFailed
Reply = Answer | Pending


def value_of(answer: Answer) -> Any:
    """What the caller gets: the value, or the failure, raised."""
    if isinstance(answer, CallFailed):
        raise answer.error
    return answer.value


# Any row of the digest is a conflict here, also that of another key.
INSERT = """INSERT INTO semel_records
    (digest, nth, tenant, scope, name, fingerprint, state, owner, attempt, created_ms, lease_until_ms, expires_ms)
    VALUES (?, coalesce((SELECT nth FROM semel_records WHERE digest = ? LIMIT 1), 0), ?, ?, ?, ?, 0, ?, 1, ?, ?, ?)
    ON CONFLICT (digest, nth) DO NOTHING"""
# With `nth` SQLite knows that it is at most one row, and updates it while it looks.
FINISH = """UPDATE semel_records SET
    state = ?, lease_until_ms = ?, expires_ms = ?, format = ?, payload = ?, refuse_ms = ?
    WHERE digest = ? AND nth = 0 AND tenant = ? AND scope = ? AND name = ? AND owner = ? AND state = 0"""


def look(connection: sqlite3.Connection, calls: Sequence[Effect[Any]], now_ms: int) -> list[Reply]:
    """Answer reads, and claims that change nothing. Every other call is unwritten.

    `now_ms` was read before the records are: what was not lapsed then must not be called lapsed.
    """
    keys = [call.key for call in calls if type(call) is Claim or type(call) is Read]
    if not keys:
        return [UNWRITTEN] * len(calls)
    rows = _find_rows(connection, keys, now_ms)
    return [_look_at(call, rows, now_ms) if type(call) is Claim or type(call) is Read else UNWRITTEN for call in calls]


def _find_rows(connection: sqlite3.Connection, keys: Sequence[Key], now_ms: int) -> Mapping[Row, Row]:
    """The rows of these keys, by the texts of the key: a digest alone does not tell whose row it is."""
    if len(keys) == 1:
        row = connection.execute(READ, named(keys[0], now=now_ms)).fetchone()
        return {} if row is None else {row[:3]: row}
    found = (row for sql, given in read_several(keys, now_ms) for row in connection.execute(sql, given))
    return {row[:3]: row for row in found}


def _look_at(call: Claim | Read, rows: Mapping[Row, Row], now_ms: int) -> Reply:
    row = rows.get((call.key.tenant, call.key.scope, call.key.name))
    try:
        found = None if row is None else to_record(row, call.key)
    except RecordUnreadable as error:
        return CallFailed(error)
    if isinstance(call, Read):
        return Replied(found)
    reply = shown(call, found, now_ms)
    return UNWRITTEN if reply is None else Replied(reply)


def write(connection: sqlite3.Connection, call: Effect[Any], now_ms: int) -> Answer:
    """Answer one call in a transaction that may write. Later calls of the transaction see what it has written.

    Try the one statement that is usually enough for a claim or a completion; if it changes no row, run the script.

    What that gains: its values go by position, and it has no `RETURNING`, for which SQLite builds a table. A batch of
    64 takes 26 instead of 44 µs for each pair (docs/measurements.md). It equals `scripts.claim` and `scripts.complete`:
    the contract suite is passed with and without it (tests/stores/test_sqlite.py, TestSqliteStoreByScripts).
    """
    answer = None
    if type(call) is Claim:
        answer = _insert(connection, call, now_ms)
    elif type(call) is Complete:
        answer = _finish(connection, call, now_ms)
    return answer or _run_script(connection, call, now_ms)


def _insert(connection: sqlite3.Connection, call: Claim, now_ms: int) -> Answer | None:
    key, owner, number, until_ms = call.key, call.owner, number_of(call.key), now_ms + call.lease_ms
    given = (number, number, key.tenant, key.scope, key.name, call.fingerprint, owner, now_ms, until_ms)
    if connection.execute(INSERT, (*given, now_ms + call.retention_ms)).rowcount == 0:
        return None
    return Replied(Acquired(Lease(key, owner, 1, until_ms)))


def _finish(connection: sqlite3.Connection, call: Complete, now_ms: int) -> Answer | None:
    key, result = call.lease.key, call.result
    format = SHORT_FORMATS.get(result.format, result.format)
    stored = (CODES[result.state], now_ms, now_ms + call.retention_ms, format, result.payload, call.refuse_ms)
    held = (number_of(key), key.tenant, key.scope, key.name, call.lease.owner)
    return Replied(True) if connection.execute(FINISH, (*stored, *held)).rowcount == 1 else None


def _run_script(connection: sqlite3.Connection, call: Effect[Any], now_ms: int) -> Answer:
    """A record that cannot be read fails for its caller, and does not end the transaction of the others."""
    if isinstance(call, OutboxCall):
        with damaged_text(connection):
            return Replied(drive(outbox.answer(call, now_ms), runner(connection)))
    try:
        [value] = drive(SCRIPTS[type(call)]([call], now_ms), runner(connection))
    except RecordUnreadable as error:
        return CallFailed(error)
    return Replied(value)
