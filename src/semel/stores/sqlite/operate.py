"""What operators ask: records by filter, page by page, and how many there are."""

from __future__ import annotations

import re

from semel.core.effects import do
from semel.store import Counts, Filter, Page
from semel.stores.sql.digests import numbers_of
from semel.stores.sql.rows import COLUMNS, FAILED, SUCCEEDED, read_rows
from semel.stores.sql.statements import Script, Statement
from semel.stores.sqlite.scripts import FINISHED_PAST_RETENTION, LAPSED_PAST_RETENTION, PAST_RETENTION

CURSOR = re.compile(r"(-?\d{1,19})\.(\d{1,19})")
SELECT = f"SELECT {', '.join(COLUMNS)}, digest, nth FROM semel_records"
IN_TURN = f"{SELECT} NOT INDEXED WHERE true"  # no index knows the newest: the whole table, in the order of the file
IN_PROGRESS = f"{SELECT} INDEXED BY semel_in_progress WHERE state = 0"  # few among many, so they are sorted when found
SCANS = {
    None: f"{SELECT} WHERE true",
    "in_progress": f"{IN_PROGRESS} AND lease_until_ms > :now",
    "unknown": f"{IN_PROGRESS} AND lease_until_ms <= :now",
    "succeeded": f"{SELECT} WHERE state = {SUCCEEDED}",
    "failed": f"{SELECT} WHERE state = {FAILED}",
}
# Each count reads one of the two partial indexes and never a record.
COUNT_IN_PROGRESS = f"""SELECT count(*), coalesce(sum(lease_until_ms <= :now), 0)
    FROM semel_records INDEXED BY semel_in_progress WHERE state = 0 AND NOT {LAPSED_PAST_RETENTION}"""
COUNT_FINISHED = f"""SELECT state, count(*) FROM semel_records INDEXED BY semel_finished
    WHERE state <> 0 AND NOT {FINISHED_PAST_RETENTION} GROUP BY state"""


def scan(filter: Filter, cursor: str | None, limit: int, now_ms: int) -> Script[Page]:
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    after = _after(cursor)
    whole = filter.created_from_ms > 0 and filter.state is None and filter.tenant is None
    sql = f"{IN_TURN if whole else SCANS[filter.state]} AND NOT {PAST_RETENTION} AND created_ms <= :created"
    if filter.created_from_ms:
        sql += " AND created_ms >= :created_from"
    if filter.tenant is not None:
        sql += " AND digest BETWEEN :tenant_first AND :tenant_last AND tenant = :tenant"
    if filter.scope is not None:
        sql += " AND scope = :scope"
    if filter.name_prefix:
        sql += " AND substr(name, 1, :prefix_size) = :prefix"
    if after is not None:
        sql += " AND (digest, nth) > (:after_digest, :after_nth)"
    first, last = numbers_of(filter.tenant or "")
    if after is not None:
        first = max(first, after[0])  # of two lower bounds SQLite would take the one that is met first
    given = {
        "now": now_ms,
        "created": now_ms - filter.older_than_ms,
        "created_from": filter.created_from_ms,
        "tenant": filter.tenant,
        "tenant_first": first,
        "tenant_last": last,
        "scope": filter.scope,
        "prefix": filter.name_prefix,
        "prefix_size": len(filter.name_prefix),
        "after_digest": after and after[0],
        "after_nth": after and after[1],
        "limit": limit + 1,
    }
    rows = yield from do(Statement(f"{sql} ORDER BY digest, nth LIMIT :limit", given))
    shown = rows[:limit]
    records, unreadable = read_rows([row[:-1] for row in shown])
    further = f"{shown[-1][-2]}.{shown[-1][-1]}" if len(rows) > limit else None
    return Page(tuple(records), further, tuple(unreadable), now_ms)


def _after(cursor: str | None) -> tuple[int, int] | None:
    """The digest and the number of the row to continue after: they can be read whatever the rest of it holds."""
    if cursor is None:
        return None
    if not (match := CURSOR.fullmatch(cursor)):
        raise ValueError(f"{cursor!r} is not a cursor that scan returned")
    return int(match[1]), int(match[2])


def counts(now_ms: int) -> Script[Counts]:
    [(in_progress, unknown)] = yield from do(Statement(COUNT_IN_PROGRESS, {"now": now_ms}))
    finished = dict[int, int]((yield from do(Statement(COUNT_FINISHED, {"now": now_ms}))))
    succeeded, failed = finished.pop(SUCCEEDED, 0), finished.pop(FAILED, 0)
    return Counts(in_progress - unknown, unknown, succeeded, failed, unreadable=sum(finished.values()))
