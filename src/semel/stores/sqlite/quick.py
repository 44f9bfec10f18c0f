"""The usual case of the calls that every request makes: one statement, filled by position, and no row to fetch.

A script costs more than its statements: generators, dictionaries, and `RETURNING`, for which SQLite builds a table.
Nothing is decided here that the script would decide otherwise: what is not usual is handed to the script.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from semel.core.effects import Claim, Complete, Effect, Read
from semel.core.records import Acquired, Claimed, Key, Lease, Record
from semel.drive import drive
from semel.errors import RecordUnreadable
from semel.stores.sql.rows import CODES, to_record
from semel.stores.sqlite.connect import runner
from semel.stores.sqlite.scripts import COMPLETE, INSERT, READ, SCRIPTS, Look, shown

NAMED = re.compile(r"(?<![:\w]):([a-z_]+)")


def by_position(sql: str, *names: str) -> tuple[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
    """The statement with question marks, and what puts values, given in the order of `names`, into its order."""
    return NAMED.sub("?", sql), itemgetter(*(names.index(name) for name in NAMED.findall(sql)))


KEY = ("tenant", "scope", "name", "now")
INSERTED, for_insert = by_position(
    f"{INSERT} ON CONFLICT (tenant, scope, name) DO NOTHING", *KEY, "fingerprint", "owner", "lease", "retention"
)
COMPLETED, for_complete = by_position(
    COMPLETE.removesuffix(" RETURNING 1"), *KEY, "owner", "state", "format", "payload", "retention", "refuse"
)
FOUND, for_read = by_position(READ, *KEY)


def perform(connection: sqlite3.Connection, call: Effect[Any], now_ms: int) -> Any:
    """Answer one call. A record that cannot be read is its caller's affair and ends nobody's transaction."""
    answer: Answer = QUICK.get(type(call), scripted)
    try:
        return answer(connection, call, now_ms)
    except RecordUnreadable as error:
        return error


def scripted(connection: sqlite3.Connection, call: Effect[Any], now_ms: int) -> Any:
    [reply] = drive(SCRIPTS[type(call)]([call], now_ms), runner(connection))
    return reply


def _claim(connection: sqlite3.Connection, call: Claim, now_ms: int) -> Any:
    """Nobody has the key, as a rule; then it is the caller's first attempt."""
    key, owner = call.key, call.owner
    given = (key.tenant, key.scope, key.name, now_ms, call.fingerprint, owner, call.lease_ms, call.retention_ms)
    if connection.execute(INSERTED, for_insert(given)).rowcount == 1:
        return Acquired(Lease(key, owner, 1, now_ms + call.lease_ms))
    return scripted(connection, call, now_ms)


def _complete(connection: sqlite3.Connection, call: Complete, now_ms: int) -> Any:
    """The caller still has the key, as a rule."""
    key, result = call.lease.key, call.result
    held = (key.tenant, key.scope, key.name, now_ms, call.lease.owner)
    given = (*held, CODES[result.state], result.format, result.payload, call.retention_ms, call.refuse_ms)
    if connection.execute(COMPLETED, for_complete(given)).rowcount == 1:
        return True
    return scripted(connection, call, now_ms)


def _find(connection: sqlite3.Connection, key: Key, now_ms: int) -> Record | None:
    rows = connection.execute(FOUND, for_read((key.tenant, key.scope, key.name, now_ms))).fetchall()
    return to_record(rows[0]) if rows else None


def _read(connection: sqlite3.Connection, call: Read, now_ms: int) -> Record | None:
    return _find(connection, call.key, now_ms)


def _look(connection: sqlite3.Connection, call: Look, now_ms: int) -> Claimed | None:
    return shown(call.claim, _find(connection, call.claim.key, now_ms), now_ms)


Answer = Callable[[sqlite3.Connection, Any, int], Any]
QUICK: Mapping[type, Answer] = {
    Claim: _claim,
    Complete: _complete,
    Read: _read,
    Look: _look,
}
