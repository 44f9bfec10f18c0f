"""The schema of the file. The file is ours, so it is brought up to date on first use."""

from __future__ import annotations

from semel.core.effects import do
from semel.store import Migration
from semel.stores.sql.statements import Script, Statement

SQLITE_MIN = (3, 35, 0)
"""The first with RETURNING (March 2021)."""

RECORDS = """CREATE TABLE semel_records (
    digest INTEGER NOT NULL,
    nth INTEGER NOT NULL DEFAULT 0,
    tenant TEXT NOT NULL,
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    state INTEGER NOT NULL,
    owner TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    format,
    payload BLOB,
    refuse_ms INTEGER NOT NULL DEFAULT 0,
    UNIQUE (digest, nth)
)"""
"""The digest finds a record, its key decides. `nth` counts the keys of one digest: among millions may be a pair."""

# Two partial indexes instead of one on the expiry: a record is in one of them, and each answers its counts alone.
IN_PROGRESS = "CREATE INDEX semel_in_progress ON semel_records (lease_until_ms, expires_ms, state) WHERE state = 0"
FINISHED = "CREATE INDEX semel_finished ON semel_records (expires_ms, refuse_ms, state) WHERE state <> 0"

OUTBOX = """CREATE TABLE semel_outbox (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    created_ms INTEGER NOT NULL,
    available_ms INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL DEFAULT 0,
    settled_ms INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    state INTEGER NOT NULL DEFAULT 0,
    owner TEXT NOT NULL DEFAULT '',
    id TEXT NOT NULL UNIQUE,
    aggregatetype TEXT NOT NULL,
    aggregateid TEXT,
    content_type TEXT NOT NULL,
    headers TEXT NOT NULL,
    error TEXT NOT NULL DEFAULT '',
    payload BLOB NOT NULL
)"""
"""Never the number of a deleted message again: it is the order. The columns are those of PostgreSQL's table."""
WAITING = "CREATE INDEX semel_outbox_waiting ON semel_outbox (sequence) WHERE state = 0"
BLOCKING = """CREATE INDEX semel_outbox_blocking ON semel_outbox (aggregateid, sequence)
    WHERE state <> 1 AND (state <> 0 OR owner <> '' OR available_ms > created_ms)"""
"""What may be in the way of a later message of its key: not a fresh message, until a relay takes it."""
DEAD = "CREATE INDEX semel_outbox_dead ON semel_outbox (sequence) WHERE state <> 0 AND state <> 1"
PUBLISHED = "CREATE INDEX semel_outbox_published ON semel_outbox (settled_ms) WHERE state = 1"

ATTEMPTS = """CREATE TABLE semel_attempts (
    digest BLOB PRIMARY KEY,
    expires_ms INTEGER NOT NULL,
    count INTEGER NOT NULL,
    error TEXT NOT NULL
)"""
"""How often a handler failed on a message: counted outside of the transaction that was rolled back."""
EXPIRES = "CREATE INDEX semel_attempts_expires ON semel_attempts (expires_ms)"

MIGRATIONS = (
    Migration(1, "records", (RECORDS, IN_PROGRESS, FINISHED)),
    Migration(2, "messages", (OUTBOX, WAITING, BLOCKING, DEAD, PUBLISHED, ATTEMPTS, EXPIRES)),
)


def is_behind() -> Script[bool]:
    """Ask without the write lock: all but the first process find nothing to do."""
    if not (yield from do(Statement("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'semel_schema'"))):
        return True
    [(number,)] = yield from do(Statement("SELECT coalesce(max(number), 0) FROM semel_schema"))
    return bool(number < MIGRATIONS[-1].number)
