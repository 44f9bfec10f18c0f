"""The usual case of the calls that every request makes: one statement, filled by position, and no row to fetch.

A script costs more than its statements: generators, dictionaries, and `RETURNING`, for which SQLite builds a table. So
does a function for each call: where many are asked for together, what they all need is done in one place, in a loop.
Nothing is decided here that the script would decide otherwise: what is not usual is handed to the script.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from enum import Enum
from operator import itemgetter
from typing import Any

from semel.core.effects import Claim, Complete, Effect, Read
from semel.core.records import Acquired, Key, Lease, Occupied, Record, Result
from semel.errors import RecordUnreadable
from semel.runtime.drive import drive
from semel.stores.sql.digests import number_of
from semel.stores.sql.rows import COLUMNS, FAILED, FORMATS, SHORT_FORMATS, STATES, SUCCEEDED, to_record
from semel.stores.sqlite.driver import runner
from semel.stores.sqlite.scripts import FINISH, FIRST, HELD, INTO, PAST_RETENTION, READ, SCRIPTS, SELECT, shown

NAMED = re.compile(r"(?<![:\w]):([a-z_]+)")


class Unanswered(Enum):
    """In the place of a reply."""

    LATER = "it has to be written"
    UNSEEN = "it was not even looked for"


LATER, UNSEEN = Unanswered.LATER, Unanswered.UNSEEN


def by_position(sql: str, *names: str) -> tuple[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
    """The statement with question marks, and what puts values, given in the order of `names`, into its order."""
    return NAMED.sub("?", sql), itemgetter(*(names.index(name) for name in NAMED.findall(sql)))


KEY = ("digest", "tenant", "scope", "name", "now")
# The only key of its digest, as a rule. Any row of it is a conflict here, whatever its place: then the script decides.
ALONE = "coalesce((SELECT nth FROM semel_records WHERE digest = :digest LIMIT 1), 0)"
INSERTED, for_insert = by_position(
    f"{INTO} VALUES ({FIRST}, {ALONE}) ON CONFLICT (digest, nth) DO NOTHING",
    *(*KEY, "fingerprint", "owner", "lease", "retention"),
)
# Of one row, as SQLite knows then: it updates while it looks.
COMPLETED, for_complete = by_position(
    f"{FINISH} WHERE nth = 0 AND {HELD}",
    *(*KEY, "owner", "state", "format", "payload", "retention", "refuse"),
)
# Who asks for a key knows it: it is neither read again nor made again.
FOUND, for_read = by_position(READ.replace(", ".join(COLUMNS), ", ".join(COLUMNS[3:])), *KEY)
TOGETHER_MAX = 64
# For each power of two. Whose digest it is, is told by the key that comes with it.
TOGETHER = {
    size: by_position(f"{SELECT} WHERE digest IN ({', '.join('?' * size)}) AND NOT {PAST_RETENTION}", "now")[0]
    for size in (1 << power for power in range(TOGETHER_MAX.bit_length()))
}
MOMENTS = PAST_RETENTION.count(":now")


def look(connection: sqlite3.Connection, calls: Sequence[Effect[Any]], now_ms: int) -> list[Any]:
    """Answer reads, and claims that change nothing. Everything else is for `LATER`."""
    rows = _rows(connection, [call.key for call in calls if type(call) is Claim or type(call) is Read], now_ms)
    replies: list[Any] = []
    for call in calls:
        reply: Any = LATER
        if type(call) is Claim or type(call) is Read:
            row = rows.get((call.key.tenant, call.key.scope, call.key.name))
            if row is not None:
                reply = _seen(call, row, now_ms)
            elif type(call) is Read:
                reply = None
        replies.append(reply)
    return replies


def _rows(connection: sqlite3.Connection, keys: Sequence[Key], now_ms: int) -> dict[tuple[str, ...], tuple[Any, ...]]:
    """What there is of these keys, after their texts: one statement for many, as each costs more than what it finds."""
    if len(keys) == 1:
        texts = (keys[0].tenant, keys[0].scope, keys[0].name)
        row = connection.execute(FOUND, for_read((number_of(keys[0]), *texts, now_ms))).fetchone()
        return {} if row is None else {texts: row}
    found: dict[tuple[str, ...], tuple[Any, ...]] = {}
    for begin in range(0, len(keys), TOGETHER_MAX):
        numbers = list(map(number_of, keys[begin : begin + TOGETHER_MAX]))
        size = 1 << (len(numbers) - 1).bit_length()
        given = (*numbers, *numbers[-1:] * (size - len(numbers)), *(now_ms,) * MOMENTS)
        for row in connection.execute(TOGETHER[size], given):
            found[row[:3]] = row[3:]
    return found


def write(connection: sqlite3.Connection, calls: Sequence[Effect[Any]], now_ms: int) -> list[Any]:
    """Answer calls in their order, so that those on the same key see each other.

    A record that cannot be read is its caller's affair and ends nobody's transaction.
    """
    replies: list[Any] = []
    given: tuple[Any, ...]
    for call in calls:
        if type(call) is Claim:  # nobody has the key, as a rule; then it is the caller's first attempt
            key, owner, lease_ms = call.key, call.owner, call.lease_ms
            named = (number_of(key), key.tenant, key.scope, key.name, now_ms)
            given = (*named, call.fingerprint, owner, lease_ms, call.retention_ms)
            if connection.execute(INSERTED, for_insert(given)).rowcount == 1:
                replies.append(Acquired(Lease(key, owner, 1, now_ms + lease_ms)))
                continue
        elif type(call) is Complete:  # the caller still has the key, as a rule
            key, owner, result = call.lease.key, call.lease.owner, call.result
            named = (number_of(key), key.tenant, key.scope, key.name, now_ms)
            format = SHORT_FORMATS.get(result.format, result.format)
            answer = (SUCCEEDED if result.ok else FAILED, format, result.payload)
            given = (*named, owner, *answer, call.retention_ms, call.refuse_ms)
            if connection.execute(COMPLETED, for_complete(given)).rowcount == 1:
                replies.append(True)
                continue
        try:
            [reply] = drive(SCRIPTS[type(call)]([call], now_ms), runner(connection))
        except RecordUnreadable as error:
            reply = error
        replies.append(reply)
    return replies


def _seen(call: Claim | Read, row: tuple[Any, ...], now_ms: int) -> Any:
    try:
        found = _record(call.key, row)
    except RecordUnreadable as error:
        return error
    if type(call) is Read:
        return found
    if found.result is not None:  # what has one is shown to everybody until its retention ends
        return Occupied(found, now_ms)
    assert type(call) is Claim
    return shown(call, found, now_ms) or LATER


def _record(key: Key, row: tuple[Any, ...]) -> Record:
    fingerprint, code, owner, attempt, created, lease, expires, format, payload, refuse = row
    if type(code) is int and code in (SUCCEEDED, FAILED) and format is not None and type(payload) is bytes:
        try:
            result = Result(FORMATS.get(format) or format, payload, code == SUCCEEDED)
        except (TypeError, ValueError):
            pass  # the other one says what is wrong with it
        else:
            times = (created, lease, expires, lease)
            return Record(key, fingerprint, STATES[code], owner, attempt, *times, result, refuse)
    return to_record((key.tenant, key.scope, key.name, *row))
