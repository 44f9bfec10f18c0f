"""The SQL of the MariaDB store. `scripts.py` says when each is asked and what its answer means.

Calls come as a table of their own (`packets.table`), so that a batch is one statement. Rows are found by the primary
key, one for each call: `STRAIGHT_JOIN` and `FORCE INDEX` leave the optimizer no other way. A locking statement that
walked over the table would wait for every row that a transaction of yours holds.

How many rows a statement changed is never looked at: what that number means depends on the connection's flags. A
script reads the owner instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from semel.core.records import Record
from semel.stores.mariadb.packets import Value, listed, literal, table
from semel.stores.sql.rows import CODES, COLUMNS, IN_PROGRESS

TABLE = "semel_records"
CLOCK = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000"
"""The server's time in milliseconds since 1970: in UTC, whatever the time zone of server and session is."""
RECORD = ", ".join(f"r.{column}" for column in COLUMNS)
TEXTS = frozenset(COLUMNS.index(name) for name in ("tenant", "scope", "name", "fingerprint", "owner", "format"))
HELD = f"r.owner = c.owner AND r.state = {IN_PROGRESS}"
BY_KEY = f"STRAIGHT_JOIN {TABLE} r FORCE INDEX (PRIMARY) ON r.digest = c.digest"
PAST = "r.expires_ms <= {now} AND r.lease_until_ms <= {now}"
INSERTED = ("digest", "tenant", "scope", "name", "fingerprint", "owner", "lease_ms", "retention_ms")


def clock(now_ms: int | None) -> str:
    """The time of the statement: the server's, unless one is given."""
    return CLOCK if now_ms is None else literal(now_ms)


def readable(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of `COLUMNS` with its texts as text. What is no UTF-8 stays bytes, and so belongs to no key."""
    return tuple(_text(value) if at in TEXTS else value for at, value in enumerate(row))


def _text(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def insert(calls: Iterable[Sequence[Value]], now_ms: int | None) -> str:
    """Inserts what is missing. What is there is neither locked nor changed, so a replay writes nothing.

    The last line is for a race: the other caller's row wins.
    """
    now = clock(now_ms)
    return f"""
INSERT INTO {TABLE}
    (digest, tenant, scope, name, fingerprint, owner, state, attempt, created_ms, lease_until_ms, expires_ms)
SELECT c.digest, c.tenant, c.scope, c.name, c.fingerprint, c.owner, {IN_PROGRESS}, 1, {now}, {now} + c.lease_ms,
    {now} + c.retention_ms
FROM {table(INSERTED, calls)} c
WHERE NOT EXISTS (SELECT 1 FROM {TABLE} r WHERE r.digest = c.digest)
ON DUPLICATE KEY UPDATE digest = {TABLE}.digest"""


def select(digests: Iterable[bytes], now_ms: int | None) -> str:
    """The rows of some keys, each after its digest and the time."""
    return f"""
SELECT r.digest, {clock(now_ms)}, {RECORD} FROM {TABLE} r FORCE INDEX (PRIMARY) WHERE r.digest IN ({listed(digests)})"""


def holders(digests: Iterable[bytes], *, lock: bool = False) -> str:
    """Who holds these keys, and how far."""
    return f"""
SELECT r.digest, r.owner, r.state, r.attempt, r.lease_until_ms
FROM {TABLE} r FORCE INDEX (PRIMARY) WHERE r.digest IN ({listed(digests)}){" FOR UPDATE" if lock else ""}"""


def renew(calls: Iterable[Sequence[Value]], now_ms: int | None) -> str:
    given = table(("digest", "owner", "lease_ms"), calls)
    return f"UPDATE {given} c {BY_KEY} SET r.lease_until_ms = {clock(now_ms)} + c.lease_ms WHERE {HELD}"


def complete(calls: Iterable[Sequence[Value]], now_ms: int | None) -> str:
    given = table(("digest", "owner", "state", "format", "payload", "retention_ms", "refuse_ms"), calls)
    return f"""
UPDATE {given} c {BY_KEY} SET r.state = c.state, r.format = c.format, r.payload = c.payload, r.refuse_ms = c.refuse_ms,
    r.lease_until_ms = {clock(now_ms)}, r.expires_ms = {clock(now_ms)} + c.retention_ms
WHERE {HELD}"""


def release(calls: Iterable[Sequence[Value]], now_ms: int | None) -> tuple[str, str]:
    """A first attempt that did nothing leaves nothing behind; after a take-over the key stays, without an owner."""
    found = f"{table(('digest', 'owner'), calls)} c {BY_KEY}"
    now = clock(now_ms)
    return (
        f"DELETE r FROM {found} WHERE {HELD} AND r.attempt = 1",
        f"UPDATE {found} SET r.owner = '', r.lease_until_ms = {now} WHERE {HELD} AND r.attempt > 1",
    )


def same(digest: bytes, old: Record) -> str:
    """Whether a row is still as it was read."""
    return (
        f"digest = {literal(digest)} AND owner = {literal(old.owner)} AND attempt = {old.attempt} "
        f"AND state = {CODES[old.state]} AND created_ms = {old.created_ms} AND lease_until_ms = {old.lease_until_ms} "
        f"AND expires_ms = {old.expires_ms} AND refuse_ms = {old.refuse_ms}"
    )


def lock(digest: bytes, old: Record) -> str:
    """One row if it is still as it was read, which it stays until the transaction ends."""
    return f"SELECT 1 FROM {TABLE} FORCE INDEX (PRIMARY) WHERE {same(digest, old)} FOR UPDATE"


def replace(digest: bytes, old: Record, new: Record | None) -> str:
    """Makes `new` of `old`, if `old` is still there."""
    if new is None:
        return f"DELETE FROM {TABLE} WHERE {same(digest, old)}"
    format, payload = (new.result.format, new.result.payload) if new.result else (None, None)
    return f"""
UPDATE {TABLE} SET fingerprint = {literal(new.fingerprint)}, state = {CODES[new.state]}, owner = {literal(new.owner)},
    attempt = {new.attempt}, created_ms = {new.created_ms}, lease_until_ms = {new.lease_until_ms},
    expires_ms = {new.expires_ms}, refuse_ms = {new.refuse_ms},
    format = {literal(format)}, payload = {literal(payload)}
WHERE {same(digest, old)}"""


def past_retention(limit: int, now_ms: int | None) -> str:
    """Locks what may be purged, and says of each whether its key is still refused. What a claim has is skipped."""
    now = clock(now_ms)
    return f"""
SELECT r.digest, r.refuse_ms > 0 AND r.expires_ms + r.refuse_ms > {now}
FROM {TABLE} r FORCE INDEX (semel_records_expires)
WHERE {PAST.format(now=now)} ORDER BY r.expires_ms LIMIT {limit} FOR UPDATE SKIP LOCKED"""


def delete(digests: Iterable[bytes]) -> str:
    return f"DELETE FROM {TABLE} WHERE digest IN ({listed(digests)})"


def empty(digests: Iterable[bytes]) -> str:
    """Keys that are only refused lose their results, and are found again when their refusal is over."""
    return f"""
UPDATE {TABLE} SET format = NULL, payload = NULL, expires_ms = expires_ms + refuse_ms, refuse_ms = 0
WHERE digest IN ({listed(digests)})"""
