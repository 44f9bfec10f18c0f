"""Whether the server can clean up behind the store: autovacuum, dead rows, and replication slots that hold back both.

Every claim and every completion leaves a dead row behind. Without vacuum the table grows and each read slows down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from semel.core.effects import Effect
from semel.store import Finding
from semel.stores.postgres.queries import TABLE
from semel.stores.sql.statements import Rows, Statement

Run = Callable[[Effect[Any]], Rows]
ASKED = ("autovacuum", "track_counts")
OFF = ("off", "false", "no", "0")
DEAD_MIN = 10_000
"""Fewer dead rows than this do no harm, however few are alive."""
# The options of the table, and of the one beside it that holds large answers.
OPTIONS = f"""
SELECT coalesce(array_to_string(c.reloptions, ' '), ''), coalesce(array_to_string(t.reloptions, ' '), '')
FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid WHERE c.oid = to_regclass('{TABLE}')"""
DEAD = f"""
SELECT n_live_tup, n_dead_tup,
    coalesce(to_char(greatest(last_vacuum, last_autovacuum), 'YYYY-MM-DD HH24:MI TZ'), 'never')
FROM pg_stat_all_tables WHERE relid = to_regclass('{TABLE}')"""
SLOTS = """
SELECT count(*), coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0)::bigint
FROM pg_replication_slots WHERE NOT active AND restart_lsn IS NOT NULL"""


def examine(run: Run, server: Mapping[str, str]) -> Iterator[Finding]:
    yield _autovacuum(run, server)
    yield _dead_rows(run)


def _autovacuum(run: Run, server: Mapping[str, str]) -> Finding:
    for name in ASKED:
        if server[name] != "on":
            return _is_off(
                f"{name} is off: nothing cleans up behind claims, so the table grows and slows down, and the server "
                "stops all writes when its transaction numbers run out",
                f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();",
            )
    [(own, beside)] = run(Statement(OPTIONS))
    for options, prefix in ((own, ""), (beside, "toast.")):
        if _disables(options):
            return _is_off(
                f"{prefix}autovacuum_enabled is off for {TABLE}: nothing cleans up behind claims, so the table grows "
                "and slows down",
                f"ALTER TABLE {TABLE} RESET ({prefix}autovacuum_enabled);",
            )
    return Finding("autovacuum", "ok", f"autovacuum is on, for {TABLE}, too")


def _is_off(detail: str, fix: str) -> Finding:
    return Finding("autovacuum", "warning", detail, fix)


def _disables(options: str) -> bool:
    return any(f"autovacuum_enabled={off}" in options.lower().split() for off in OFF)


def _dead_rows(run: Run) -> Finding:
    rows = run(Statement(DEAD))
    live, dead, vacuumed = rows[0] if rows else (0, 0, "never")
    detail = f"{dead} dead rows beside {live} live ones; last vacuumed: {vacuumed}"
    if dead < DEAD_MIN or dead <= live:
        return Finding("dead rows", "ok", detail)
    return Finding(
        "dead rows",
        "warning",
        f"{detail}: reads pass over them, and the table is larger than it needs to be",
        f"VACUUM {TABLE}; and if they stay, end what holds them: a transaction that has been open for long "
        "(pg_stat_activity.xact_start), a prepared one (pg_prepared_xacts) or an unused replication slot",
    )


def slots(run: Run) -> Iterator[Finding]:
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
