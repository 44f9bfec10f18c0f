"""Listing and counting records, for operators."""

from __future__ import annotations

import re
from typing import Any

from semel.core.effects import do
from semel.store import Counts, Filter, Page
from semel.stores.postgres.queries import PAST_RETENTION, RECORD, moment
from semel.stores.sql.digests import SIZE, tenant_of
from semel.stores.sql.rows import FAILED, IN_PROGRESS, SUCCEEDED, read_rows
from semel.stores.sql.statements import Script, Statement

SAMPLE_PAGES = 4_096
"""Finished records are counted up to this size of the table (32 MB, about 100 000); beyond it, so much is sampled."""
PAGES = "SELECT pg_relation_size(to_regclass($1)) / current_setting('block_size')::bigint"
UNFINISHED = "r.state + 0 = 0"
"""As the index says it."""
OF_NO_KNOWN_STATE = f"r.state NOT IN ({SUCCEEDED}, {FAILED})"
CURSOR = re.compile(f"[0-9a-f]{{{2 * SIZE}}}")
CONDITIONS = {
    "in_progress": f"{UNFINISHED} AND r.lease_until_ms > now_ms",
    "unknown": f"{UNFINISHED} AND r.lease_until_ms <= now_ms",
    "succeeded": f"r.state = {SUCCEEDED}",
    "failed": f"r.state = {FAILED}",
}


def scan(table: str, filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Script[Page]:
    """In the order of the digests, a tenant's together.

    Only what is asked for is in the statement, so that it is planned for that.
    """
    params: list[Any] = [now_ms, limit + 1, filter.older_than_ms]
    wanted = [f"NOT ({PAST_RETENTION})", "now_ms - r.created_ms >= $3"]
    if filter.state is not None:
        wanted.append(CONDITIONS[filter.state])
    if filter.tenant is not None:
        begins = tenant_of(filter.tenant)
        params += [begins, begins.ljust(SIZE, b"\xff"), filter.tenant]
        wanted.append("r.digest BETWEEN ${} AND ${} AND r.tenant = ${}".format(*_last(params, 3)))
    for condition, value in (
        ("r.scope = ${}", filter.scope),
        ("starts_with(r.name, ${})", filter.name_prefix or None),
        ("r.created_ms >= ${}", filter.created_from_ms or None),
    ):
        if value is not None:
            params.append(value)
            wanted.append(condition.format(len(params)))
    after = _after(cursor)
    if after is not None:
        params.append(after)
        wanted.append(f"r.digest > ${len(params)}")
    rows = yield from do(
        Statement(
            f"WITH {moment('$1')} SELECT {RECORD}, r.digest, now_ms FROM moment LEFT JOIN LATERAL ("
            f"SELECT * FROM {table} r WHERE {' AND '.join(wanted)} ORDER BY r.digest LIMIT $2"
            ") r ON true ORDER BY r.digest",  # the time comes also where no record does
            params,
        )
    )
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    shown = [row for row in rows[:limit] if row[-2] is not None]
    records, unreadable = read_rows([row[:-1] for row in shown])
    further = bytes(shown[-1][-2]).hex() if len(rows) > limit else None
    return Page(tuple(records), further, tuple(unreadable), rows[0][-1])


def _after(cursor: str | None) -> bytes | None:
    """The digest to continue after."""
    if cursor is None:
        return None
    if not CURSOR.fullmatch(cursor):
        raise ValueError(f"{cursor!r} is not a cursor that scan returned")
    return bytes.fromhex(cursor)


def counts(table: str, now_ms: int | None) -> Script[Counts]:
    """What is in progress or unknown comes from its own index, what is finished from the table or a sample of it."""
    sql = _counted(f"{table} r", "in_progress", "unknown", UNFINISHED)
    ((in_progress, unknown),) = yield from do(Statement(sql, [now_ms]))
    ((pages,),) = yield from do(Statement(PAGES, [table]))
    share = min(1.0, SAMPLE_PAGES / max(1, pages))
    sample = f"{table} r TABLESAMPLE SYSTEM ({100 * share:.6f})"
    sql = _counted(sample, "succeeded", "failed", f"r.state <> {IN_PROGRESS}", OF_NO_KNOWN_STATE)
    found = yield from do(Statement(sql, [now_ms]))
    succeeded, failed, unreadable = (round(number / share) for number in found[0])
    return Counts(in_progress, unknown, succeeded, failed, exact=share == 1, unreadable=unreadable)


def _counted(source: str, one: str, other: str, among: str, *more: str) -> str:
    counts = ", ".join(f"count(*) FILTER (WHERE {each})" for each in (CONDITIONS[one], CONDITIONS[other], *more))
    return f"WITH {moment('$1')} SELECT {counts} FROM {source}, moment WHERE {among} AND NOT ({PAST_RETENTION})"


def _last(params: list[Any], count: int) -> range:
    """The numbers of the parameters that were added last."""
    return range(len(params) - count + 1, len(params) + 1)
