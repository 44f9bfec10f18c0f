"""The outbox in MariaDB: what relays and operators ask.

A relay never waits for another one, and the order of a key is kept all the same. A take goes in three steps, of which
the last two are one transaction:

- candidates: as it is committed now, nothing is in the way of these, and none of their key is left out between them.
- locked: of these, what no other relay is taking now, and what is still as the first step saw it.
- whole: a message is taken only if all earlier candidates of its key were locked, too.

A message that was added or redriven since the first step may as well have come after the take. When others are taking
all candidates, there may be more behind them: the script then looks at more of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from semel.core.effects import Effect, do
from semel.core.outbox import (
    CountMessages,
    DiscardMessages,
    ListMessages,
    OutboxCounts,
    OutboxPage,
    PurgeMessages,
    RedriveMessages,
    SettleMessages,
    TakeMessages,
    Taken,
)
from semel.stores.mariadb.packets import packet, table, text, transaction
from semel.stores.mariadb.queries import clock
from semel.stores.mariadb.transaction_queries import OUTBOX
from semel.stores.sql.messages import (
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
from semel.stores.sql.statements import Rows, Script

WINDOW, WIDER, WINDOW_MAX = 2, 4, 16_000
"""How many candidates are looked at for each message that is wanted, and by how much that grows."""
MESSAGE = ", ".join(f"o.{column}" for column in COLUMNS)
DUE = f"o.state = {WAITING} AND o.lease_until_ms <= {{now}} AND o.available_ms <= {{now}}"
BY_SEQUENCE = f"{OUTBOX} o FORCE INDEX (PRIMARY)"
IN_ORDER = f"{OUTBOX} o FORCE INDEX (semel_outbox_state)"
SETTLED = ("sequence", "state", "tried", "delay_ms", "error")
SETTLE_MAX = 1_000
"""How many messages one statement settles: of a row of values the server makes a table."""
Candidate = tuple[int, str | None]


def candidates(call: TakeMessages, window: int, now: str) -> str:
    """`blocking` is the column that says what may be in the way of a later message of its key."""
    free = f"""
    AND (o.aggregateid IS NULL OR NOT EXISTS (
        SELECT 1 FROM {OUTBOX} e FORCE INDEX (semel_outbox_blocking)
        WHERE e.aggregateid = o.aggregateid AND e.blocking = 1 AND e.sequence < o.sequence AND CASE e.state
            WHEN {WAITING} THEN e.lease_until_ms > {now} OR e.available_ms > {now}
            WHEN {DEAD} THEN {int(call.dead_block)} ELSE 1 END))"""
    return f"""
SELECT o.sequence, o.aggregateid FROM {IN_ORDER}
WHERE {DUE.format(now=now)}{free if call.by_key else ""} ORDER BY o.sequence LIMIT {window}"""


def lock(found: Sequence[Candidate], limit: int, now: str) -> str:
    asked = ", ".join(str(sequence) for sequence, _ in found)
    return f"""
SELECT o.sequence FROM {BY_SEQUENCE}
WHERE o.sequence IN ({asked}) AND {DUE.format(now=now)} ORDER BY o.sequence LIMIT {limit} FOR UPDATE SKIP LOCKED"""


def hold(sequences: Sequence[int], call: TakeMessages, now: str) -> tuple[str, str]:
    """Write our name on messages that are locked, and read them."""
    ours = f"WHERE o.sequence IN ({', '.join(map(str, sequences))})"
    return (
        f"UPDATE {BY_SEQUENCE} SET o.owner = {text(call.owner)}, o.lease_until_ms = {now} + {call.lease_ms} {ours}",
        f"SELECT {MESSAGE} FROM {BY_SEQUENCE} {ours}",
    )


def settle(owner: str, rows: Sequence[SettledRow], now: str) -> tuple[str, str]:
    """Lock and name those that are ours, then change them."""
    held = f"o.state = {WAITING} AND o.owner = {text(owner)}"
    asked = ", ".join(str(row.sequence) for row in rows)
    given = table(SETTLED, [msgspec.structs.astuple(row) for row in rows])
    return (
        f"SELECT o.sequence FROM {BY_SEQUENCE} WHERE o.sequence IN ({asked}) AND {held} FOR UPDATE",
        f"""
UPDATE {given} c STRAIGHT_JOIN {BY_SEQUENCE} ON o.sequence = c.sequence
SET o.state = c.state, o.owner = '', o.lease_until_ms = 0, o.attempt = o.attempt + c.tried,
    o.available_ms = IF(c.delay_ms = {KEPT_MS}, o.available_ms, {now} + c.delay_ms),
    o.settled_ms = IF(c.state = {WAITING}, 0, {now}),
    o.error = IF(c.state = {WAITING} AND c.delay_ms = {KEPT_MS}, o.error, c.error)
WHERE {held}""",
    )


def purgeable(call: PurgeMessages, now: str) -> str:
    return f"""
SELECT o.sequence FROM {OUTBOX} o FORCE INDEX (semel_outbox_settled)
WHERE o.state = {PUBLISHED} AND o.settled_ms <= {now} - {call.older_ms} ORDER BY o.settled_ms LIMIT {call.limit}
FOR UPDATE SKIP LOCKED"""


def counts(now: str) -> tuple[str, str]:
    """By the index of the states."""
    return (
        f"SELECT o.state, COUNT(*) FROM {IN_ORDER} GROUP BY o.state",
        f"SELECT {now} - o.created_ms FROM {IN_ORDER} WHERE o.state = {WAITING} ORDER BY o.sequence LIMIT 1",
    )


def dead(sequences: Sequence[int]) -> str:
    return f"WHERE o.sequence IN ({', '.join(map(str, sequences))}) AND o.state = {DEAD}"


def answer(call: Effect[Any], now_ms: int | None) -> Script[Any]:
    now = clock(now_ms)
    match call:
        case TakeMessages():
            return _take(call, now)
        case SettleMessages(owner):
            return _settle(owner, settled_rows(call), now)
        case PurgeMessages():
            return _purge(call, now)
        case ListMessages():
            return _list(call, now)
        case CountMessages():
            return _count(now)
        case RedriveMessages(sequences):
            change = f"SET o.state = {WAITING}, o.attempt = 0, o.available_ms = {now}, o.settled_ms = 0"
            return _change_dead(sequences, f"UPDATE {BY_SEQUENCE} {change}")
        case DiscardMessages(sequences):
            return _change_dead(sequences, f"DELETE o FROM {BY_SEQUENCE}")
        case other:
            raise TypeError(f"an outbox does not answer {type(other).__name__}")


def _take(call: TakeMessages, now: str) -> Script[tuple[Taken, ...]]:
    window, limit = WINDOW * call.count, call.count
    rows: Rows = ()
    while not rows:
        [[now_ms]], found = yield from do(packet(f"SELECT {now}", candidates(call, window, now)))
        if found:
            _, locked = yield from do(packet("START TRANSACTION", lock(found, limit, str(now_ms))))
            whole = list(_whole(found, {sequence for (sequence,) in locked}, call.by_key))[: call.count]
            *sets, _ = yield from do(packet(*(hold(whole, call, str(now_ms)) if whole else ()), "COMMIT"))
            rows = sets[-1] if sets else ()
        if len(found) < window or window >= WINDOW_MAX:
            break
        window = limit = min(WIDER * window, WINDOW_MAX)
    taken, back = to_taken(rows, by_key=call.by_key)
    yield from _settle(call.owner, back, now)
    return taken


def _whole(found: Sequence[Candidate], locked: set[int], by_key: bool) -> Iterator[int]:
    """The locked candidates without an earlier one of their key that is not locked."""
    broken: set[str] = set()
    for sequence, key in found:
        if sequence not in locked:
            if key is not None:
                broken.add(key)
        elif not by_key or key not in broken:
            yield sequence


def _settle(owner: str, rows: Sequence[SettledRow], now: str) -> Script[int]:
    settled = 0
    for first in range(0, len(rows), SETTLE_MAX):
        some = rows[first : first + SETTLE_MAX]
        _, ours, *_ = yield from do(transaction(*settle(owner, some, now)))
        settled += len(ours)
    return settled


def _purge(call: PurgeMessages, now: str) -> Script[int]:
    """Lock and delete are two round trips of one transaction: what is locked by others is left for the next purge."""
    _, found = yield from do(packet("START TRANSACTION", purgeable(call, now)))
    asked = ", ".join(str(sequence) for (sequence,) in found)
    delete = (f"DELETE FROM {OUTBOX} WHERE sequence IN ({asked})",) if found else ()
    yield from do(packet(*delete, "COMMIT"))
    return len(found)


def _list(call: ListMessages, now: str) -> Script[OutboxPage]:
    wanted = call.filter
    conditions = [f"o.{KNOWN}", f"{now} - o.created_ms >= {wanted.older_than_ms}"]
    if wanted.state is not None:
        conditions.append(f"o.state = {CODES[wanted.state]}")
    if wanted.topic is not None:
        conditions.append(f"o.aggregatetype = {text(wanted.topic)}")
    if wanted.key is not None:
        conditions.append(f"o.aggregateid = {text(wanted.key)}")
    if wanted.id_prefix:
        conditions.append(f"LEFT(o.id, {len(wanted.id_prefix)}) = {text(wanted.id_prefix)}")
    unknown = f"o.state NOT IN ({WAITING}, {PUBLISHED}, {DEAD})"
    some = f"SELECT {MESSAGE} FROM {OUTBOX} o WHERE o.sequence > {call.after} AND {{}} ORDER BY o.sequence LIMIT {{}}"
    asked = [some.format(each, call.limit + 1) for each in (" AND ".join(conditions), unknown)]
    [[now_ms]], rows, others = yield from do(packet(f"SELECT {now}", *asked))
    return to_page([*rows, *others], call.limit, now_ms)


def _count(now: str) -> Script[OutboxCounts]:
    states, oldest = yield from do(packet(*counts(now)))
    number: dict[int, int] = dict(states)
    unreadable = sum(count for state, count in number.items() if state not in CODES.values())
    waiting, published, given_up = (number.get(state, 0) for state in (WAITING, PUBLISHED, DEAD))
    return OutboxCounts(waiting, published, given_up, oldest[0][0] if oldest else None, unreadable)


def _change_dead(sequences: Sequence[int], change: str) -> Script[int]:
    if not sequences:
        return 0
    where = dead(sequences)
    look = f"SELECT o.sequence FROM {BY_SEQUENCE} {where} FOR UPDATE"
    _, found, *_ = yield from do(transaction(look, f"{change} {where}"))
    return len(found)
