"""Counting failed attempts of messages, in MariaDB."""

from __future__ import annotations

from semel.core.attempts import CountAttempt
from semel.core.effects import do
from semel.stores.mariadb.packets import literal, packet, transaction
from semel.stores.mariadb.queries import clock
from semel.stores.sql.digests import digest_of
from semel.stores.sql.statements import Script

TABLE = "semel_attempts"


def count_attempt(call: CountAttempt, now_ms: int | None) -> Script[int]:
    _, _, [[number]], _ = yield from do(transaction(*counting(call, now_ms)))
    return int(number)


def counting(call: CountAttempt, now_ms: int | None) -> tuple[str, str]:
    """Two statements for one transaction: count, and look. The time is the server's, unless one is given."""
    digest, now = literal(digest_of(call.key)), clock(now_ms)
    # Assigned from left to right: the count looks at the old expiry.
    count = f"""
INSERT INTO {TABLE} (digest, expires_ms, count, error)
VALUES ({digest}, {now} + {call.retention_ms}, 1, {literal(call.error)})
ON DUPLICATE KEY UPDATE count = IF(expires_ms <= {now}, 1, count + 1), expires_ms = VALUES(expires_ms),
    error = VALUES(error)"""
    return count, f"SELECT count FROM {TABLE} WHERE digest = {digest}"


def purge_attempts(limit: int, now_ms: int | None) -> Script[None]:
    """Forget up to `limit` counts that are past their retention."""
    yield from do(packet(f"DELETE FROM {TABLE} WHERE expires_ms <= {clock(now_ms)} ORDER BY expires_ms LIMIT {limit}"))
