"""Counting failed attempts of messages, in PostgreSQL: for the store, and on a connection of yours."""

from __future__ import annotations

from semel.core.attempts import CountAttempt
from semel.core.effects import do
from semel.stores.sql.digests import digest_of
from semel.stores.sql.statements import Script, Statement

TABLE = "semel_attempts"
NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


def count(table: str) -> str:
    return f"""
WITH moment AS MATERIALIZED (SELECT coalesce($4::bigint, {NOW}) AS now_ms)
INSERT INTO {table} AS a (digest, expires_ms, count, error)
SELECT $1::bytea, now_ms + $2::bigint, 1, $3::text FROM moment
ON CONFLICT (digest) DO UPDATE SET
    count = CASE WHEN a.expires_ms <= excluded.expires_ms - $2::bigint THEN 1 ELSE a.count + 1 END,
    expires_ms = excluded.expires_ms, error = excluded.error
RETURNING count"""


def purge(table: str) -> str:
    """Skips what is being counted in this moment: waiting for it could take as long as its transaction."""
    return f"""
DELETE FROM {table} WHERE digest IN (
    SELECT digest FROM {table} WHERE expires_ms <= coalesce($2::bigint, {NOW})
    ORDER BY expires_ms LIMIT $1 FOR UPDATE SKIP LOCKED)"""


def count_attempt(table: str, call: CountAttempt, now_ms: int | None) -> Script[int]:
    """The time is the server's, unless one is given."""
    given = [digest_of(call.key), call.retention_ms, call.error, now_ms]
    [(counted,)] = yield from do(Statement(count(table), given))
    return int(counted)


def purge_attempts(table: str, limit: int, now_ms: int | None) -> Script[None]:
    """Forget up to `limit` counts that are past their retention."""
    yield from do(Statement(purge(table), [limit, now_ms]))
