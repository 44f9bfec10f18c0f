"""The outbox in a file: what relays and operators ask. There is one writer at a time, so a take needs no locks.

The scripts that write begin with a write, and must run inside of a transaction; each index is named where the planner
might take another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from semel.core.effects import Effect, do
from semel.core.outbox import (
    CountMessages,
    DiscardMessages,
    ListMessages,
    OutboxCall,
    OutboxCounts,
    OutboxPage,
    PurgeMessages,
    RedriveMessages,
    SettleMessages,
    TakeMessages,
    Taken,
)
from semel.stores.sql.messages import (
    BLOCKING,
    CODES,
    COLUMNS,
    DEAD,
    KEPT_MS,
    KNOWN,
    PUBLISHED,
    WAITING,
    SettledRow,
    settled_rows,
    to_page,
    to_taken,
)
from semel.stores.sql.statements import Script, Statement

MESSAGE = ", ".join(COLUMNS)
DUE = f"""FROM semel_outbox o INDEXED BY semel_outbox_waiting
    WHERE o.state = {WAITING} AND o.lease_until_ms <= :now AND o.available_ms <= :now
    AND (NOT :by_key OR o.aggregateid IS NULL OR NOT EXISTS (
        SELECT 1 FROM semel_outbox e INDEXED BY semel_outbox_blocking
        WHERE e.aggregateid = o.aggregateid AND e.sequence < o.sequence AND {BLOCKING}
        AND CASE e.state WHEN {WAITING} THEN e.lease_until_ms > :now OR e.available_ms > :now
            WHEN {DEAD} THEN :dead_block ELSE 1 END))"""
IS_DUE = f"SELECT 1 {DUE} LIMIT 1"
TAKE = f"""UPDATE semel_outbox SET owner = :owner, lease_until_ms = :now + :lease
    WHERE sequence IN (SELECT o.sequence {DUE} ORDER BY o.sequence LIMIT :count) RETURNING {MESSAGE}"""
SETTLE = f"""UPDATE semel_outbox SET state = :state, owner = '', lease_until_ms = 0, attempt = attempt + :tried,
    available_ms = CASE WHEN :delay = {KEPT_MS} THEN available_ms ELSE :now + :delay END,
    settled_ms = CASE WHEN :state = {WAITING} THEN 0 ELSE :now END,
    error = CASE WHEN :state = {WAITING} AND :delay = {KEPT_MS} THEN error ELSE :error END
    WHERE sequence = :sequence AND state = {WAITING} AND owner = :owner RETURNING 1"""
PURGE = f"""DELETE FROM semel_outbox WHERE sequence IN (
    SELECT sequence FROM semel_outbox INDEXED BY semel_outbox_published
    WHERE state = {PUBLISHED} AND settled_ms <= :now - :older ORDER BY settled_ms LIMIT :limit) RETURNING 1"""
NUMBER = "(SELECT count(*) FROM semel_outbox INDEXED BY"
UNSETTLED = f"state <> {WAITING} AND state <> {PUBLISHED}"
COUNT = f"""SELECT {NUMBER} semel_outbox_waiting WHERE state = {WAITING}),
    {NUMBER} semel_outbox_published WHERE state = {PUBLISHED}),
    {NUMBER} semel_outbox_dead WHERE {UNSETTLED} AND state = {DEAD}),
    {NUMBER} semel_outbox_dead WHERE {UNSETTLED} AND NOT {KNOWN}),
    :now - (SELECT created_ms FROM semel_outbox INDEXED BY semel_outbox_waiting
        WHERE state = {WAITING} ORDER BY sequence LIMIT 1)"""
REDRIVE = f"""UPDATE semel_outbox SET state = {WAITING}, attempt = 0, available_ms = :now, settled_ms = 0
    WHERE sequence = :sequence AND state = {DEAD} RETURNING 1"""
DISCARD = f"DELETE FROM semel_outbox WHERE sequence = :sequence AND state = {DEAD} RETURNING 1"
SELECT = f"SELECT {MESSAGE} FROM semel_outbox"
LISTS = {
    None: f"{SELECT} NOT INDEXED WHERE {KNOWN}",
    WAITING: f"{SELECT} INDEXED BY semel_outbox_waiting WHERE state = {WAITING}",
    PUBLISHED: f"{SELECT} NOT INDEXED WHERE state = {PUBLISHED}",
    DEAD: f"{SELECT} INDEXED BY semel_outbox_dead WHERE {UNSETTLED} AND state = {DEAD}",
}
LIST_UNKNOWN = f"{SELECT} INDEXED BY semel_outbox_dead WHERE {UNSETTLED} AND NOT {KNOWN}"
PAGE = "AND sequence > :after ORDER BY sequence LIMIT :limit"


class LookForMessages(Effect["tuple[Taken, ...] | None"], frozen=True):
    """Answer a take without writing; None if there is a message. An idle relay never waits for the write lock."""

    take: TakeMessages


def answer(call: Effect[Any], now_ms: int) -> Script[Any]:
    script = SCRIPTS.get(type(call))
    if script is None:
        raise TypeError(f"an outbox does not answer {type(call).__name__}")
    return script(call, now_ms)


def look_for_messages(call: Effect[Any]) -> LookForMessages | None:
    return LookForMessages(call) if isinstance(call, TakeMessages) else None


def only_reads(call: Effect[Any]) -> bool:
    return isinstance(call, (ListMessages, CountMessages, LookForMessages))


def size_of(call: OutboxCall[Any]) -> int:
    """How many messages a call writes, at most."""
    match call:
        case TakeMessages(count=count):
            return count
        case SettleMessages():
            return len(call.published) + len(call.failed) + len(call.dead) + len(call.untried)
        case PurgeMessages(limit=limit):
            return limit
        case RedriveMessages(sequences) | DiscardMessages(sequences):
            return len(sequences)
        case _:
            return 1


def _look(call: LookForMessages, now_ms: int) -> Script[tuple[Taken, ...] | None]:
    take = call.take
    given = {"now": now_ms, "by_key": take.by_key, "dead_block": take.dead_block}
    return None if (yield from do(Statement(IS_DUE, given))) else ()


def _take(call: TakeMessages, now_ms: int) -> Script[tuple[Taken, ...]]:
    given = {"now": now_ms, "owner": call.owner, "count": call.count, "lease": call.lease_ms}
    rows = yield from do(Statement(TAKE, {**given, "by_key": call.by_key, "dead_block": call.dead_block}))
    taken, back = to_taken(rows, by_key=call.by_key)
    yield from _settle_rows(call.owner, back, now_ms)
    return taken


def _settle(call: SettleMessages, now_ms: int) -> Script[int]:
    return (yield from _settle_rows(call.owner, settled_rows(call), now_ms))


def _settle_rows(owner: str, rows: list[SettledRow], now_ms: int) -> Script[int]:
    settled = 0
    for row in rows:
        given = {"sequence": row.sequence, "state": row.state, "tried": row.tried, "delay": row.delay_ms}
        settled += len((yield from do(Statement(SETTLE, {**given, "error": row.error, "owner": owner, "now": now_ms}))))
    return settled


def _purge(call: PurgeMessages, now_ms: int) -> Script[int]:
    given = {"now": now_ms, "older": call.older_ms, "limit": call.limit}
    return len((yield from do(Statement(PURGE, given))))


def _list(call: ListMessages, now_ms: int) -> Script[OutboxPage]:
    wanted = call.filter
    state = None if wanted.state is None else CODES[wanted.state]
    sql = f"{LISTS[state]} AND created_ms <= :created"
    for condition, value in (
        ("aggregatetype = :topic", wanted.topic),
        ("aggregateid = :key", wanted.key),
        ("substr(id, 1, :prefix_size) = :prefix", wanted.id_prefix or None),
    ):
        if value is not None:
            sql += f" AND {condition}"
    given = {
        "after": call.after,
        "created": now_ms - wanted.older_than_ms,
        "topic": wanted.topic,
        "key": wanted.key,
        "prefix": wanted.id_prefix,
        "prefix_size": len(wanted.id_prefix),
        "limit": call.limit + 1,
    }
    rows = yield from do(Statement(f"{sql} {PAGE}", given))
    others = yield from do(Statement(f"{LIST_UNKNOWN} {PAGE}", given))
    return to_page([*rows, *others], call.limit, now_ms)


def _count(call: CountMessages, now_ms: int) -> Script[OutboxCounts]:
    [(waiting, published, dead, unreadable, oldest_ms)] = yield from do(Statement(COUNT, {"now": now_ms}))
    return OutboxCounts(waiting, published, dead, oldest_ms, unreadable)


def _redrive(call: RedriveMessages, now_ms: int) -> Script[int]:
    return (yield from _each(REDRIVE, call.sequences, now_ms))


def _discard(call: DiscardMessages, now_ms: int) -> Script[int]:
    return (yield from _each(DISCARD, call.sequences, now_ms))


def _each(sql: str, sequences: tuple[int, ...], now_ms: int) -> Script[int]:
    changed = 0
    for sequence in dict.fromkeys(sequences):
        changed += len((yield from do(Statement(sql, {"sequence": sequence, "now": now_ms}))))
    return changed


SCRIPTS: Mapping[type, Callable[[Any, int], Script[Any]]] = {
    LookForMessages: _look,
    TakeMessages: _take,
    SettleMessages: _settle,
    PurgeMessages: _purge,
    ListMessages: _list,
    CountMessages: _count,
    RedriveMessages: _redrive,
    DiscardMessages: _discard,
}
