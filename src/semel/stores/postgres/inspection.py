"""Listing and counting records, for operators."""

from __future__ import annotations

from typing import Any

from semel.core.effects import do
from semel.core.records import Key
from semel.store import Counts, Filter, Page
from semel.stores.cursor import key_after, page
from semel.stores.postgres.queries import PAST_RETENTION, RECORD, moment
from semel.stores.sql.rows import FAILED, SUCCEEDED, to_record
from semel.stores.sql.statements import Script, Statement

SAMPLE_PAGES = 4_096
"""Finished records are counted up to this size of the table (32 MB, about 100 000); beyond it, so much is sampled."""
PAGES = "SELECT pg_relation_size(to_regclass($1)) / current_setting('block_size')::bigint"
CONDITIONS = {
    "in_progress": "r.completed_ms IS NULL AND r.lease_until_ms > now_ms",
    "unknown": "r.completed_ms IS NULL AND r.lease_until_ms <= now_ms",
    "succeeded": f"r.state = {SUCCEEDED}",
    "failed": f"r.state = {FAILED}",
}


def scan(table: str, filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Script[Page]:
    """In the order of the primary key. Only what is asked for is in the statement, so that it is planned for that."""
    params: list[Any] = [now_ms, limit + 1, filter.older_than_ms]
    wanted = [f"NOT ({PAST_RETENTION})", "now_ms - r.created_ms >= $3"]
    if filter.state is not None:
        wanted.append(CONDITIONS[filter.state])
    for condition, value in (
        ("r.tenant = ${}", filter.tenant),
        ("r.scope = ${}", filter.scope),
        ("starts_with(r.name, ${})", filter.name_prefix or None),
    ):
        if value is not None:
            params.append(value)
            wanted.append(condition.format(len(params)))
    after = key_after(cursor)
    if after is not None:
        wanted.append("(r.tenant, r.scope, r.name) > (${}, ${}, ${})".format(*range(len(params) + 1, len(params) + 4)))
        params += _parts(after)
    rows = yield from do(
        Statement(
            f"WITH {moment('$1')} SELECT {RECORD} FROM {table} r, moment WHERE {' AND '.join(wanted)} "
            "ORDER BY r.tenant, r.scope, r.name LIMIT $2",
            params,
        )
    )
    return page([to_record(row) for row in rows], limit)


def counts(table: str, now_ms: int | None) -> Script[Counts]:
    """What is in progress or unknown comes from its own index, what is finished from the table or a sample of it."""
    sql = _counted(f"{table} r", "in_progress", "unknown", "r.completed_ms IS NULL")
    ((in_progress, unknown),) = yield from do(Statement(sql, [now_ms]))
    ((pages,),) = yield from do(Statement(PAGES, [table]))
    share = min(1.0, SAMPLE_PAGES / max(1, pages))
    sample = f"{table} r TABLESAMPLE SYSTEM ({100 * share:.6f})"
    sql = _counted(sample, "succeeded", "failed", "r.completed_ms IS NOT NULL")
    ((succeeded, failed),) = yield from do(Statement(sql, [now_ms]))
    return Counts(in_progress, unknown, round(succeeded / share), round(failed / share), exact=share == 1)


def _counted(source: str, one: str, other: str, among: str) -> str:
    both = ", ".join(f"count(*) FILTER (WHERE {CONDITIONS[each]})" for each in (one, other))
    return f"WITH {moment('$1')} SELECT {both} FROM {source}, moment WHERE {among} AND NOT ({PAST_RETENTION})"


def _parts(key: Key) -> tuple[str, str, str]:
    return key.tenant, key.scope, key.name
