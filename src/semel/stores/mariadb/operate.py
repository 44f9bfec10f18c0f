"""Listing and counting records, for operators."""

from __future__ import annotations

import re

from semel.core.effects import do
from semel.store import Counts, Filter, Page
from semel.stores.mariadb.packets import literal, packet
from semel.stores.mariadb.queries import CLOCK, RECORD, TABLE, readable
from semel.stores.sql.digests import SIZE, tenant_of
from semel.stores.sql.rows import FAILED, IN_PROGRESS, SUCCEEDED, read_rows
from semel.stores.sql.statements import Script

SAMPLE_ROWS = 100_000
"""Finished records are counted up to this many rows of the table; beyond it, so many are sampled."""
ESTIMATE = (
    f"SELECT table_rows FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '{TABLE}'"
)
NUMBERS = "state, lease_until_ms, expires_ms, refuse_ms"
PAST_RETENTION = "(r.expires_ms + r.refuse_ms <= {now} AND r.lease_until_ms <= {now})"
CONDITIONS = {
    "in_progress": f"r.state = {IN_PROGRESS} AND r.lease_until_ms > {{now}}",
    "unknown": f"r.state = {IN_PROGRESS} AND r.lease_until_ms <= {{now}}",
    "succeeded": f"r.state = {SUCCEEDED}",
    "failed": f"r.state = {FAILED}",
}
OF_NO_KNOWN_STATE = f"r.state NOT IN ({IN_PROGRESS}, {SUCCEEDED}, {FAILED})"
CURSOR = re.compile(f"[0-9a-f]{{{2 * SIZE}}}")


def scan(filter: Filter, cursor: str | None, limit: int, now_ms: int | None) -> Script[Page]:
    """In the order of the digests, a tenant's together."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    after = _after(cursor)
    now = yield from _now(now_ms)
    wanted = [f"NOT {PAST_RETENTION.format(now=now)}", f"{now} - r.created_ms >= {filter.older_than_ms}"]
    if filter.state is not None:
        wanted.append(CONDITIONS[filter.state].format(now=now))
    if filter.tenant is not None:
        begins = tenant_of(filter.tenant)
        wanted.append(f"r.digest BETWEEN {literal(begins)} AND {literal(begins.ljust(SIZE, bytes([255])))}")
        wanted.append(f"r.tenant = {literal(filter.tenant)}")
    if filter.scope is not None:
        wanted.append(f"r.scope = {literal(filter.scope)}")
    if prefix := filter.name_prefix.encode():
        wanted.append(f"LEFT(r.name, {len(prefix)}) = {literal(prefix)}")
    if filter.created_from_ms:
        wanted.append(f"r.created_ms >= {filter.created_from_ms}")
    if after is not None:
        wanted.append(f"r.digest > {literal(after)}")
    asked = f"SELECT {RECORD}, r.digest FROM {TABLE} r WHERE {' AND '.join(wanted)} ORDER BY r.digest LIMIT {limit + 1}"
    [rows] = yield from do(packet(asked))
    shown = rows[:limit]
    records, unreadable = read_rows([readable(row) for row in shown])
    further = shown[-1][-1].hex() if len(rows) > limit else None
    return Page(tuple(records), further, tuple(unreadable), now)


def counts(now_ms: int | None) -> Script[Counts]:
    """What is in progress or unknown comes from its index, what is finished from the table or a sample of it."""
    now = yield from _now(now_ms)
    kept = f"NOT {PAST_RETENTION.format(now=now)}"
    in_progress = f"{TABLE} r FORCE INDEX (semel_records_state) WHERE r.state = {IN_PROGRESS} AND {kept}"
    sampled = f"(SELECT {NUMBERS} FROM {TABLE} ORDER BY digest LIMIT {SAMPLE_ROWS}) r WHERE {kept}"
    states = ", ".join(map(_number_of, (CONDITIONS["succeeded"], CONDITIONS["failed"], OF_NO_KNOWN_STATE)))
    [[live, unfinished]], [[looked_at]], [[size]], [finished] = yield from do(
        packet(
            f"SELECT {_number_of(CONDITIONS['in_progress'].format(now=now))}, COUNT(*) FROM {in_progress}",
            f"SELECT COUNT(*) FROM (SELECT 1 FROM {TABLE} LIMIT {SAMPLE_ROWS}) few",
            ESTIMATE,
            f"SELECT {states} FROM {sampled}",
        )
    )
    exact = looked_at < SAMPLE_ROWS
    share = 1 if exact else SAMPLE_ROWS / max(SAMPLE_ROWS, size)
    succeeded, failed, unreadable = (round(int(number) / share) for number in finished)
    return Counts(int(live), int(unfinished - live), succeeded, failed, exact=exact, unreadable=unreadable)


def _number_of(condition: str) -> str:
    return f"COALESCE(SUM({condition}), 0)"


def _now(now_ms: int | None) -> Script[int]:
    if now_ms is not None:
        return now_ms
    [[[server_ms]]] = yield from do(packet(f"SELECT {CLOCK}"))
    return int(server_ms)


def _after(cursor: str | None) -> bytes | None:
    """The digest to continue after."""
    if cursor is None:
        return None
    if not CURSOR.fullmatch(cursor):
        raise ValueError(f"{cursor!r} is not a cursor that scan returned")
    return bytes.fromhex(cursor)
