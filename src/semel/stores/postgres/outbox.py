"""The outbox: what relays and operators ask, each in one statement that is a transaction of its own.

A relay never waits for another one, and the order of a key is kept all the same. A statement looks at a snapshot first,
in which a message may be taken that another relay has taken since. So it goes in three steps:

- candidates: in the snapshot, nothing is in the way of these, and none of their key is left out between them.
- locked: of these, what no other relay is taking now, and what is still as the snapshot says.
- whole: a message is taken only if all earlier candidates of its key were locked, too.

What is not in the snapshot cannot be in the way: a message that was added or redriven since may as well have come after
the take. When others are taking all candidates, there may be more behind them: the script then looks at more of them.
"""

from __future__ import annotations

from typing import Any

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
from semel.stores.postgres.queries import durable_moment, moment
from semel.stores.postgres.schema import quoted
from semel.stores.postgres.transaction_queries import OUTBOX
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
    chunks,
    settled_rows,
    to_page,
    to_taken,
)
from semel.stores.sql.statements import Rows, Script, Statement

WINDOW, WIDER, WINDOW_MAX = 2, 4, 16_000
"""How many candidates are looked at for each message that is wanted, and by how much that grows."""
MESSAGE = ", ".join(f"o.{column}" for column in COLUMNS)
DUE = f"o.state = {WAITING} AND o.lease_until_ms <= (SELECT now_ms FROM moment) \
AND o.available_ms <= (SELECT now_ms FROM moment)"


def take(table: str) -> str:
    """$1 owner, $2 how many, $3 of how many candidates, $4 lease, $5 by key, $6 whether dead ones block, $7 the time,
    $8 how many candidates to lock.

    `CASE` keeps the planner from making a join of what is asked for each row: it would read all rows first.
    """
    return f"""
WITH {moment("$7")}, candidates AS MATERIALIZED (
    SELECT o.sequence, o.aggregateid FROM {table} o
    WHERE {DUE} AND CASE WHEN $5::boolean AND o.aggregateid IS NOT NULL THEN NOT EXISTS (
        SELECT FROM {table} e WHERE e.aggregateid = o.aggregateid AND e.sequence < o.sequence AND {BLOCKING}
            AND CASE e.state
                WHEN {WAITING} THEN e.lease_until_ms > (SELECT now_ms FROM moment)
                    OR e.available_ms > (SELECT now_ms FROM moment)
                WHEN {DEAD} THEN $6::boolean ELSE true END
    ) ELSE true END
    ORDER BY o.sequence LIMIT $3::bigint
), locked AS MATERIALIZED (
    SELECT o.sequence FROM {table} o
    WHERE o.sequence = ANY (ARRAY(SELECT sequence FROM candidates)) AND {DUE}
    ORDER BY o.sequence LIMIT $8::bigint FOR UPDATE SKIP LOCKED
), whole AS MATERIALIZED (
    SELECT sequence FROM (
        SELECT sequence, bool_and(sequence IN (SELECT sequence FROM locked)) OVER (
            PARTITION BY aggregateid, CASE WHEN NOT $5::boolean OR aggregateid IS NULL THEN sequence END
            ORDER BY sequence
        ) AS ours FROM candidates
    ) AS judged WHERE ours ORDER BY sequence LIMIT $2::bigint
), taken AS (
    UPDATE {table} AS o SET owner = $1::text, lease_until_ms = (SELECT now_ms FROM moment) + $4::bigint
    WHERE o.sequence = ANY (ARRAY(SELECT sequence FROM whole)) AND o.state = {WAITING}
    RETURNING {MESSAGE}
)
SELECT (SELECT count(*) FROM candidates), o.* FROM moment LEFT JOIN taken o ON true"""


def settle(table: str) -> str:
    """`state + 0` keeps the planner from the index of waiting messages: while statistics call it small, one batch would
    read the whole backlog for each of its messages.
    """
    return f"""
WITH {moment("$7")}
UPDATE {table} AS o SET state = c.state, owner = '', lease_until_ms = 0, attempt = o.attempt + c.tried,
    available_ms = CASE WHEN c.delay_ms = {KEPT_MS} THEN o.available_ms ELSE now_ms + c.delay_ms END,
    settled_ms = CASE WHEN c.state = {WAITING} THEN 0 ELSE now_ms END,
    error = CASE WHEN c.state = {WAITING} AND c.delay_ms = {KEPT_MS} THEN o.error ELSE c.error END
FROM moment, unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[])
        AS c (sequence, state, tried, delay_ms, error, owner)
WHERE o.sequence = c.sequence AND o.state + 0 = {WAITING} AND o.owner = c.owner
RETURNING 1"""


def purge(table: str) -> str:
    return f"""
WITH {moment("$3")}
DELETE FROM {table} WHERE ctid = ANY (ARRAY(
    SELECT o.ctid FROM {table} o
    WHERE o.state = {PUBLISHED} AND o.settled_ms <= (SELECT now_ms FROM moment) - $1::bigint
    ORDER BY o.settled_ms LIMIT $2::bigint FOR UPDATE SKIP LOCKED
)) RETURNING 1"""


def counts(table: str) -> str:
    """Each from an index of its own."""
    number = f"(SELECT count(*) FROM {table} WHERE"
    return f"""
WITH {moment("$1")}
SELECT {number} state = {WAITING}), {number} state = {PUBLISHED}),
    {number} state <> {WAITING} AND state <> {PUBLISHED} AND state = {DEAD}),
    {number} state <> {WAITING} AND state <> {PUBLISHED} AND NOT {KNOWN}),
    now_ms - (SELECT created_ms FROM {table} WHERE state = {WAITING} ORDER BY sequence LIMIT 1)
FROM moment"""


def redrive(table: str) -> str:
    return f"""
WITH {durable_moment("$2")}
UPDATE {table} AS o SET state = {WAITING}, attempt = 0, available_ms = now_ms, settled_ms = 0
FROM moment WHERE o.sequence = ANY ($1::bigint[]) AND o.state = {DEAD} RETURNING 1"""


def discard(table: str) -> str:
    return f"""
WITH {durable_moment("$2")}
DELETE FROM {table} AS o USING moment WHERE o.sequence = ANY ($1::bigint[]) AND o.state = {DEAD} RETURNING 1"""


class PostgresOutbox:
    """The scripts for the table in one PostgreSQL schema; "" is wherever the search path finds it."""

    def __init__(self, schema: str = "") -> None:
        table = f"{quoted(schema)}.{OUTBOX}" if schema else OUTBOX
        self._table = table
        self._take, self._settle, self._purge = take(table), settle(table), purge(table)
        self._counts, self._redrive, self._discard = counts(table), redrive(table), discard(table)

    def answer(self, call: Effect[Any], now_ms: int | None) -> Script[Any]:
        match call:
            case TakeMessages():
                return self._taking(call, now_ms)
            case SettleMessages(owner):
                return self._settling(owner, settled_rows(call), now_ms)
            case PurgeMessages(older_ms, limit):
                return _number_of(self._purge, [older_ms, limit, now_ms])
            case ListMessages():
                return self._listing(call, now_ms)
            case CountMessages():
                return self._counting(now_ms)
            case RedriveMessages(sequences):
                return _number_of(self._redrive, [list(sequences), now_ms], ask=bool(sequences))
            case DiscardMessages(sequences):
                return _number_of(self._discard, [list(sequences), now_ms], ask=bool(sequences))
            case other:
                raise TypeError(f"an outbox does not answer {type(other).__name__}")

    def _taking(self, call: TakeMessages, now_ms: int | None) -> Script[tuple[Taken, ...]]:
        window, locks = WINDOW * call.count, call.count
        rows: Rows = ()
        while not rows:
            given = [call.owner, call.count, window, call.lease_ms, call.by_key, call.dead_block, now_ms, locks]
            found = yield from do(Statement(self._take, given))
            candidates = found[0][0]
            rows = [row[1:] for row in found if row[1] is not None]
            if candidates < window or window >= WINDOW_MAX:
                break
            window = locks = min(WIDER * window, WINDOW_MAX)
        taken, back = to_taken(rows, by_key=call.by_key)
        yield from self._settling(call.owner, back, now_ms)
        return taken

    def _settling(self, owner: str, rows: list[SettledRow], now_ms: int | None) -> Script[int]:
        if not rows:
            return 0
        return (yield from _number_of(self._settle, [*chunks(rows), [owner] * len(rows), now_ms]))

    def _listing(self, call: ListMessages, now_ms: int | None) -> Script[OutboxPage]:
        """Only what is asked for is in the statement, so that it is planned for that."""
        wanted = call.filter
        params: list[Any] = [now_ms, call.after, call.limit + 1, wanted.older_than_ms]
        conditions = [f"o.{KNOWN}", "now_ms - o.created_ms >= $4::bigint"]
        if wanted.state is not None:
            conditions.append(f"o.state = {CODES[wanted.state]}")
        if wanted.state is not None and CODES[wanted.state] == DEAD:
            conditions.append(f"o.state <> {WAITING} AND o.state <> {PUBLISHED}")
        for condition, value in (
            ("o.aggregatetype = ${}::text", wanted.topic),
            ("o.aggregateid = ${}::text", wanted.key),
            ("starts_with(o.id, ${}::text)", wanted.id_prefix or None),
        ):
            if value is not None:
                params.append(value)
                conditions.append(condition.format(len(params)))
        unknown = f"o.state <> {WAITING} AND o.state <> {PUBLISHED} AND NOT o.{KNOWN}"
        some = f"SELECT * FROM {self._table} o WHERE o.sequence > $2::bigint AND"
        rows = yield from do(
            Statement(
                f"WITH {moment('$1')} SELECT now_ms, {MESSAGE} FROM moment LEFT JOIN LATERAL ("
                f"({some} {' AND '.join(conditions)} ORDER BY o.sequence LIMIT $3::bigint) UNION ALL "
                f"({some} {unknown} ORDER BY o.sequence LIMIT $3::bigint)"
                ") o ON true",  # the time comes also where no message does
                params,
            )
        )
        return to_page([row[1:] for row in rows if row[1] is not None], call.limit, rows[0][0])

    def _counting(self, now_ms: int | None) -> Script[OutboxCounts]:
        [(waiting, published, dead, unreadable, oldest_ms)] = yield from do(Statement(self._counts, [now_ms]))
        return OutboxCounts(waiting, published, dead, oldest_ms, unreadable)


def _number_of(sql: str, params: list[Any], *, ask: bool = True) -> Script[int]:
    """How many rows a statement changed."""
    return len((yield from do(Statement(sql, params)))) if ask else 0
