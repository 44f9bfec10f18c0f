"""The SQL of a claim, of its completion and of a new message inside of a PostgreSQL transaction. `transaction.py` says
when each is asked.
"""

from __future__ import annotations

from semel.stores.sql.rows import COLUMNS, IN_PROGRESS

TABLE, BOOK, OUTBOX = "semel_records", "semel_schema", "semel_outbox"
CHANNEL = "semel_outbox"
"""Relays listen here. Each transaction notifies them once: the server joins equal notifications."""
KNOWN = 2
"""The number of the store's newest migration. Its own module needs psycopg, and a connection may be asyncpg's."""
NAMED = "r.digest = $1"
RECORD = ", ".join(f"r.{column}" for column in COLUMNS)
NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
MOMENT = f"moment AS MATERIALIZED (SELECT {NOW} AS now_ms)"
FITS = f"coalesce(version[1] >= {KNOWN} AND version[2] <= {KNOWN}, false)"
INTO = "(digest, tenant, scope, name, fingerprint, state, owner, attempt, created_ms, lease_until_ms, expires_ms)"
VALUES = f"""SELECT $1::bytea, $2::text, $3::text, $4::text, $5::text, {IN_PROGRESS}, $6::text, 1,
    now_ms, now_ms + $7::bigint, now_ms + $8::bigint"""
MARKED = "pg_current_xact_id()::text AS mark, r.lease_until_ms"
INTO_OUTBOX = "(created_ms, available_ms, id, aggregatetype, aggregateid, content_type, headers, payload)"
MESSAGE = "SELECT now_ms, now_ms, $1::text, $2::text, $3::text, $4::text, $5::text, $6::bytea"
SAME = """m.aggregatetype = $2::text AND m.aggregateid IS NOT DISTINCT FROM $3::text
        AND m.content_type = $4::text AND m.headers = $5::text AND m.payload = $6::bytea"""
NOTIFIED = f"pg_notify('{CHANNEL}', '')::text"
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
    """Wait for the transaction that has the key's lock, then insert; what is past retention is overwritten.

    The lock comes first, so that no claim of a third transaction gets it, and then waits for this row without a bound.
    """
    return f"""
WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock($9::bigint)),
    moment AS MATERIALIZED (SELECT {NOW} AS now_ms FROM locked)
INSERT INTO {table} AS r {INTO} {VALUES} FROM moment
ON CONFLICT (digest) DO UPDATE SET
    tenant = excluded.tenant, scope = excluded.scope, name = excluded.name,
    fingerprint = excluded.fingerprint, state = excluded.state, owner = excluded.owner, attempt = 1,
    created_ms = excluded.created_ms, lease_until_ms = excluded.lease_until_ms, expires_ms = excluded.expires_ms,
    format = NULL, payload = NULL, refuse_ms = 0
WHERE r.expires_ms + r.refuse_ms <= excluded.created_ms AND r.lease_until_ms <= excluded.created_ms
RETURNING {MARKED}"""


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


def add_message(outbox: str, book: str) -> str:
    """As `claim`: what is there is compared; what is not is inserted, unless that might mean to wait."""
    return f"""
WITH {moment(book)}, seen AS MATERIALIZED (
    SELECT {SAME} AS same FROM {outbox} m WHERE m.id = $1::text
), free AS MATERIALIZED (
    SELECT CASE WHEN EXISTS (SELECT FROM seen) OR NOT {FITS} THEN false
        ELSE coalesce(pg_try_advisory_xact_lock($7::bigint), true) END AS ours FROM moment
), added AS (
    INSERT INTO {outbox} AS m {INTO_OUTBOX} {MESSAGE} FROM moment, free WHERE ours
    ON CONFLICT (id) DO NOTHING
    RETURNING {NOTIFIED} AS notified
)
SELECT version, a.notified IS NOT NULL, same, ours
FROM moment CROSS JOIN free LEFT JOIN added a ON true LEFT JOIN seen ON true"""


def insist_on_message(outbox: str) -> str:
    """Insert, and wait for the other transaction that adds this id."""
    return f"""
WITH {MOMENT}
INSERT INTO {outbox} AS m {INTO_OUTBOX} {MESSAGE} FROM moment
ON CONFLICT (id) DO NOTHING
RETURNING {NOTIFIED}, pg_try_advisory_xact_lock($7::bigint)"""
