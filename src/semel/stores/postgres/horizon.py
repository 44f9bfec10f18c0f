"""What keeps vacuum from removing dead rows: old transactions, standbys and replication slots.

Vacuum keeps a row that any snapshot might still see. One open transaction is enough to make the table grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from semel.core.effects import Effect
from semel.store import Finding
from semel.stores.sql.statements import Rows, Statement

Run = Callable[[Effect[Any]], Rows]
OPEN_MAX_S = 600.0
"""A transaction of a service takes milliseconds, one of a report some minutes."""
HELD_MAX = 1_000_000
"""For so many transactions a standby or a slot may hold back what vacuum removes."""
# A transaction holds back only the tables of its own database.
TRANSACTIONS = """
SELECT pid, coalesce(nullif(application_name, ''), usename::text, ''), state,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS open_s
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND backend_type = 'client backend'
ORDER BY xact_start LIMIT 1"""
PREPARED = """
SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts
WHERE database = current_database() ORDER BY prepared LIMIT 1"""
HOLDERS = """
SELECT name, held FROM (
    SELECT 'the replication slot ' || slot_name AS name, greatest(age(xmin), age(catalog_xmin))::bigint AS held
    FROM pg_replication_slots
    UNION ALL
    SELECT 'the standby ' || application_name || ' (hot_standby_feedback)', age(backend_xmin)::bigint
    FROM pg_stat_replication
) AS holding WHERE held IS NOT NULL ORDER BY held DESC LIMIT 1"""
SLOTS = """
SELECT count(*), coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0)::bigint
FROM pg_replication_slots WHERE NOT active AND restart_lsn IS NOT NULL"""


def examine(run: Run) -> Iterator[Finding]:
    """On a primary: a standby cleans up as its primary does."""
    yield _transactions(run)
    yield from _prepared(run)
    yield from _holders(run)
    yield from _slots(run)


def _transactions(run: Run) -> Finding:
    """Without pg_read_all_stats a user sees only the transactions of its own role."""
    oldest = run(Statement(TRANSACTIONS))
    if not oldest or oldest[0][3] <= OPEN_MAX_S:
        return Finding("open transactions", "ok", "none that this user can see is older than some minutes")
    [(pid, name, state, open_s)] = oldest
    return Finding(
        "open transactions",
        "warning",
        f"the transaction of process {pid} ({name}, {state}) is open for {open_s / 60:.0f} minutes: vacuum removes "
        "nothing that died since then, and every purge passes over it again",
        f"SELECT pg_terminate_backend({pid}); and bound such transactions: ALTER ROLE … SET "
        "idle_in_transaction_session_timeout = '5min';",
    )


def _prepared(run: Run) -> Iterator[Finding]:
    for gid, open_s in run(Statement(PREPARED)):
        if open_s > OPEN_MAX_S:
            yield Finding(
                "prepared transactions",
                "warning",
                f"{gid!r} was prepared {open_s / 60:.0f} minutes ago and neither committed nor rolled back: vacuum "
                "removes nothing that died since then",
                "COMMIT PREPARED or ROLLBACK PREPARED it, as its coordinator says",
            )


def _holders(run: Run) -> Iterator[Finding]:
    for name, held in run(Statement(HOLDERS)):
        if held > HELD_MAX:
            yield Finding(
                "vacuum",
                "warning",
                f"{name} holds back what vacuum may remove by {held:,} transactions, so the table grows",
                "let it catch up: end the long query on the standby; drop a slot that is not needed any more: SELECT "
                "pg_drop_replication_slot(slot_name)",
            )


def _slots(run: Run) -> Iterator[Finding]:
    """Replication slots that nothing reads, if there are any. The server keeps its log for them, without an end."""
    [(count, held)] = run(Statement(SLOTS))
    if count:
        yield Finding(
            "slots",
            "warning",
            f"{'1 replication slot is' if count == 1 else f'{count} replication slots are'} not in use, and the server "
            f"keeps {held // 1_000_000} MB of its log for that, until the disk is full and no claim is taken",
            "start its standby again, or drop it: SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE NOT active;",
        )
