"""Claim and complete inside of a PostgreSQL transaction, one statement each where nobody is in the way.

An insert waits for as long as the twin's transaction is open, so the claim first tries an advisory lock on the key,
which tells without waiting. Only who does not get it goes the long way: savepoint, lock timeout, insert. A claim that
is granted on the long way takes the lock as well, or the next claim would insert, and wait without a bound. It may have
to wait for the lock a moment longer: PostgreSQL lets go of a transaction's rows first, and of its locks after that. The
lock decides nothing, the unique key does: two keys that share a lock only wait when they need not.
"""

from __future__ import annotations

from semel.core.attempts import CountAttempt
from semel.core.effects import Claim, Complete, do
from semel.core.records import Key, Lease, Occupied, Record
from semel.errors import StoreUnavailable
from semel.stores.postgres import attempts
from semel.stores.sql.digests import digest_of
from semel.stores.sql.engine import HERE, ROUNDS_MAX, Claimed, Granted, ended_inside, still_running
from semel.stores.sql.errors import LockWaitEnded
from semel.stores.sql.migrations import refuse_unfit
from semel.stores.sql.rows import CODES, COLUMNS, IN_PROGRESS, checked, to_record
from semel.stores.sql.statements import Rows, Script, Statement

TABLE, BOOK = "semel_records", "semel_schema"
KNOWN = 2
"""The number of the store's newest migration. Its own module needs psycopg, and a connection may be asyncpg's."""
WAIT_MS = 10_000
LOCK_MS = 50
"""How long a claim that was granted waits for the lock. Then another key has it, and the claim goes on without."""
NAMED = "r.digest = $1"
RECORD = ", ".join(f"r.{column}" for column in COLUMNS)
NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
MOMENT = f"moment AS MATERIALIZED (SELECT {NOW} AS now_ms)"
FITS = f"coalesce(version[1] >= {KNOWN} AND version[2] <= {KNOWN}, false)"
INTO = "(digest, tenant, scope, name, fingerprint, state, owner, attempt, created_ms, lease_until_ms, expires_ms)"
VALUES = f"""SELECT $1::bytea, $2::text, $3::text, $4::text, $5::text, {IN_PROGRESS}, $6::text, 1,
    now_ms, now_ms + $7::bigint, now_ms + $8::bigint"""
MARKED = "pg_current_xact_id()::text AS mark, r.lease_until_ms"
LIMIT_WAIT = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', $1::text, true)"
LOCK = "SELECT pg_advisory_xact_lock($1::bigint)"
UNLIMIT = "SELECT set_config('lock_timeout', $1::text, true)"


def moment(book: str) -> str:
    """The time, and the last entry in the book of migrations: a claim looks at it each time, in its own statement.

    Which tables a connection of yours finds may change with its search path, so nothing about it is remembered.
    """
    version = f"SELECT ARRAY[number, readable_from] FROM {book} ORDER BY number DESC LIMIT 1"
    return f"moment AS MATERIALIZED (SELECT {NOW} AS now_ms, ({version}) AS version)"


def claim(table: str, book: str) -> str:
    """What is there is only looked at; what is not is inserted, unless that might mean to wait."""
    return f"""
WITH {moment(book)}, seen AS MATERIALIZED (
    SELECT {RECORD} FROM {table} r WHERE {NAMED}
), free AS MATERIALIZED (
    SELECT CASE WHEN EXISTS (SELECT FROM seen) OR NOT {FITS} THEN false
        ELSE pg_try_advisory_xact_lock($9::bigint) END AS ours FROM moment
), inserted AS (
    INSERT INTO {table} AS r {INTO} {VALUES} FROM moment, free WHERE ours
    ON CONFLICT (digest) DO NOTHING
    RETURNING {MARKED}
)
SELECT version, i.mark, i.lease_until_ms, now_ms, {RECORD}
FROM moment LEFT JOIN inserted i ON true LEFT JOIN seen r ON true"""


def insist(table: str) -> str:
    """Insert, and wait for whoever is in the way; what is past retention is overwritten."""
    return f"""
WITH {MOMENT}
INSERT INTO {table} AS r {INTO} {VALUES} FROM moment
ON CONFLICT (digest) DO UPDATE SET
    tenant = excluded.tenant, scope = excluded.scope, name = excluded.name,
    fingerprint = excluded.fingerprint, state = excluded.state, owner = excluded.owner, attempt = 1,
    created_ms = excluded.created_ms, lease_until_ms = excluded.lease_until_ms, expires_ms = excluded.expires_ms,
    format = NULL, payload = NULL, refuse_ms = 0
WHERE r.expires_ms + r.refuse_ms <= excluded.created_ms AND r.lease_until_ms <= excluded.created_ms
RETURNING {MARKED}, pg_try_advisory_xact_lock($9::bigint)"""


def read(table: str, book: str) -> str:
    """As a claim tells it that finds a record."""
    return f"""
WITH {moment(book)}
SELECT version, NULL, NULL, now_ms, {RECORD}
FROM moment LEFT JOIN {table} r ON {NAMED}"""


def complete(table: str) -> str:
    return f"""
WITH {MOMENT}
UPDATE {table} AS r SET state = $3::smallint, format = $4::text, payload = $5::bytea, refuse_ms = $6::bigint,
    lease_until_ms = now_ms, expires_ms = now_ms + $7::bigint
FROM moment
WHERE {NAMED} AND r.owner = $2 AND r.state = {IN_PROGRESS} AND pg_current_xact_id_if_assigned()::text = $8::text
RETURNING 1"""


class PostgresEngine:
    """The scripts for the table in one schema; "" is wherever the connection's search path finds it."""

    tells_twins = True

    def __init__(self, schema: str = "") -> None:
        place = f'"{schema.replace(chr(34), chr(34) * 2)}".' if schema else ""
        table, book = f"{place}{TABLE}", f"{place}{BOOK}"
        self._claim, self._read = claim(table, book), read(table, book)
        self._insist, self._complete = insist(table), complete(table)
        self._attempts = f"{place}{attempts.TABLE}"

    def claim(self, call: Claim, wait_ms: int | None) -> Script[Claimed]:
        key, digest = call.key, digest_of(call.key)
        named = [digest, key.tenant, key.scope, key.name]
        given = [*named, call.fingerprint, call.owner, call.lease_ms, call.retention_ms, _lock(digest)]
        rows = yield from self._ask(self._claim, given)
        for _ in range(ROUNDS_MAX):
            if rows and rows[0][0] is not None:
                mark, until_ms = rows[0][:2]
                return Granted(Lease(call.key, call.owner, 1, until_ms), mark)
            if found := _found(rows, key):
                return found
            rows = yield from self._wait_for(key, given, WAIT_MS if wait_ms is None else max(1, wait_ms))
            if not rows:  # somebody has the key, whom only a new statement sees
                rows = yield from self._ask(self._read, [digest])
        raise StoreUnavailable(f"{call.key} changed hands {ROUNDS_MAX} times while it was being claimed")

    def _ask(self, sql: str, params: list[object]) -> Script[Rows]:
        """The rows of a claim or a look, if the schema is one that this version can use."""
        rows = yield from do(Statement(sql, params))
        for version, *_ in rows:
            number, readable_from = version or (0, 0)
            refuse_unfit(number, readable_from, KNOWN, HERE)
        return [tuple(row[1:]) for row in rows]

    def _wait_for(self, key: Key, given: list[object], wait_ms: int) -> Script[Rows]:
        """Insert, within a bound. The savepoint keeps the transaction usable when the bound is reached."""
        yield from do(Statement("SAVEPOINT semel"))
        [(before, _)] = yield from do(Statement(LIMIT_WAIT, [str(wait_ms)]))
        try:
            rows = yield from do(Statement(self._insist, given))
        except LockWaitEnded:
            yield from do(Statement("ROLLBACK TO SAVEPOINT semel"))
            yield from do(Statement("RELEASE SAVEPOINT semel"))
            raise still_running(key, f"{wait_ms} ms") from None
        if any(not locked for *_, locked in rows):
            yield from self._lock_late(given[-1])
        yield from do(Statement(UNLIMIT, [before]))
        yield from do(Statement("RELEASE SAVEPOINT semel"))
        return rows

    def _lock_late(self, lock: object) -> Script[None]:
        """Take the lock of a key that was granted already, within a bound of its own."""
        yield from do(Statement("SAVEPOINT semel_lock"))
        yield from do(Statement(LIMIT_WAIT, [str(LOCK_MS)]))
        try:
            yield from do(Statement(LOCK, [lock]))
        except LockWaitEnded:
            yield from do(Statement("ROLLBACK TO SAVEPOINT semel_lock"))
        yield from do(Statement("RELEASE SAVEPOINT semel_lock"))

    def complete(self, call: Complete, mark: str) -> Script[None]:
        key, result = call.lease.key, call.result
        stored = [CODES[result.state], result.format, result.payload, call.refuse_ms, call.retention_ms]
        if not (yield from do(Statement(self._complete, [digest_of(key), call.lease.owner, *stored, mark]))):
            raise ended_inside(key)

    def count_attempt(self, call: CountAttempt) -> Script[int]:
        return attempts.count_attempt(self._attempts, call, None)

    def read(self, key: Key) -> Script[Record | None]:
        found = _found((yield from self._ask(self._read, [digest_of(key)])), key)
        return None if found is None else found.record


def _found(rows: Rows, key: Key) -> Occupied | None:
    """The record that is there, unless it is past retention, which is as if there were none."""
    for _, _, now_ms, *row in rows:
        if row[0] is not None:
            record = to_record(tuple(row))
            return None if record.past_retention(now_ms) else Occupied(checked(record, key), now_ms)
    return None


def _lock(digest: bytes) -> int:
    """The key as the number of an advisory lock."""
    return int.from_bytes(digest[-8:], signed=True)
