"""Counting failed attempts of messages, in SQLite: for the store, and on a connection of yours."""

from __future__ import annotations

from semel.core.attempts import CountAttempt
from semel.core.effects import do
from semel.stores.sql.digests import digest_of
from semel.stores.sql.statements import Script, Statement

COUNT = """INSERT INTO semel_attempts (digest, expires_ms, count, error)
    VALUES (:digest, :now + :retention, 1, :error)
    ON CONFLICT (digest) DO UPDATE SET
        count = CASE WHEN expires_ms <= :now THEN 1 ELSE count + 1 END,
        expires_ms = excluded.expires_ms, error = excluded.error
    RETURNING count"""
PURGE = """DELETE FROM semel_attempts WHERE digest IN
    (SELECT digest FROM semel_attempts WHERE expires_ms <= :now LIMIT :limit)"""


def count_attempt(call: CountAttempt, now_ms: int) -> Script[int]:
    given = {"digest": digest_of(call.key), "now": now_ms, "retention": call.retention_ms, "error": call.error}
    [(count,)] = yield from do(Statement(COUNT, given))
    return int(count)


def purge_attempts(limit: int, now_ms: int) -> Script[None]:
    """Forget up to `limit` counts that are past their retention."""
    yield from do(Statement(PURGE, {"now": now_ms, "limit": limit}))
