"""Claim, complete and add a message inside of a MariaDB transaction.

A claim looks first, so a replay is one statement without a lock. Then it inserts. An insert waits for as long as the
twin's transaction is open, so it is tried without waiting, and then once more with a bound. Both are told apart from an
insert that is only slow: that is never refused.

A savepoint is the mark of the transaction. It is gone when the block ends the transaction, when a statement that
changes a schema commits it, and when the server rolls it back for the sake of another one.

MariaDB undoes only the statement whose wait has ended, and the transaction goes on. A server with
`innodb_rollback_on_timeout` rolls back all of it when a lock is not given in time. There we only use the other bound,
the one on the time of a statement, which undoes the statement alone everywhere.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from semel.core import model
from semel.core.attempts import CountAttempt
from semel.core.effects import Claim, Complete, do
from semel.core.outbox import AddMessage
from semel.core.records import Acquired, Key, Occupied, Record
from semel.errors import StoreUnavailable
from semel.stores.mariadb import queries
from semel.stores.mariadb import transaction_queries as asked
from semel.stores.mariadb.attempts import counting
from semel.stores.mariadb.transaction_queries import KNOWN, NO_WAIT, STRICT, limited, setting
from semel.stores.sql.digests import digest_of
from semel.stores.sql.engine import (
    HERE,
    ROUNDS_MAX,
    Claimed,
    Granted,
    ended_inside,
    message_reused,
    still_adding,
    still_running,
)
from semel.stores.sql.errors import Duplicate, LockWaitEnded, SavepointGone
from semel.stores.sql.migrations import refuse_unfit
from semel.stores.sql.rows import CODES, checked, to_record
from semel.stores.sql.statements import Rows, Script, Statement

WAIT_MS = 10_000
WAIT_LEAST_MS = 50
"""The least that an insert is given which another transaction is in the way of. A statement that has a shorter time may
end before it was begun. And at REPEATABLE READ a replay may be in the way of other keys for a moment."""
LOOK_LEAST_MS = 2_000
"""A look waits for other transactions only at SERIALIZABLE."""


class LookedRow(NamedTuple):
    """What a look has found: the columns that it asked for, the time, and what the server does when a wait ends."""

    row: tuple[object, ...]
    now_ms: int
    waits_undo_all: bool


class MariadbEngine:
    """The scripts for the tables in the database of the connection."""

    tells_twins = True

    def claim(self, call: Claim, wait_ms: int | None) -> Script[Claimed]:
        key, bound_ms = call.key, WAIT_MS if wait_ms is None else max(WAIT_LEAST_MS, wait_ms)
        looked = yield from self._look(asked.look(key), bound_ms)
        if looked is None:
            raise still_running(key, f"{bound_ms} ms")
        if (found := _record(looked.row, key)) is not None and not found.past_retention(looked.now_ms):
            return Occupied(found, looked.now_ms)
        rows = yield from self._insert(asked.insert(call), bound_ms, looked)
        if rows is None:
            raise still_running(key, f"{bound_ms} ms")
        [(now_ms, *row)] = rows
        there = checked(to_record(queries.readable(row)), key)
        new, reply = model.claim(there, call, now_ms)
        if not isinstance(reply, Acquired):
            return reply
        if new is not there:  # past retention, and locked by the insert
            yield from do(Statement(setting(STRICT, queries.replace(digest_of(key), there, new))))
        mark = f"`semel_{sha256(call.owner.encode()).hexdigest()[:32]}`"
        yield from do(Statement(f"SAVEPOINT {mark}"))
        return Granted(reply.lease, mark)

    def complete(self, call: Complete, mark: str) -> Script[None]:
        """While the savepoint is there, so is the record, and only this transaction can change it."""
        try:
            yield from do(Statement(f"RELEASE SAVEPOINT {mark}"))
        except SavepointGone:
            raise ended_inside(call.lease.key) from None
        lease, result = call.lease, call.result
        stored = (CODES[result.state], result.format, result.payload, call.retention_ms, call.refuse_ms)
        update = queries.complete([(digest_of(lease.key), lease.owner, *stored)], None)
        yield from do(Statement(setting(STRICT, update)))

    def read(self, key: Key) -> Script[Record | None]:
        looked = yield from self._look(asked.look(key), WAIT_MS)
        if looked is None:
            raise still_running(key, f"{WAIT_MS} ms")
        return model.read(_record(looked.row, key), looked.now_ms)

    def count_attempt(self, call: CountAttempt) -> Script[int]:
        count, counted = counting(call, None)
        yield from do(Statement(setting(STRICT, count)))
        [[number]] = yield from do(Statement(counted))
        return int(number)

    def add_message(self, call: AddMessage) -> Script[bool]:
        message = call.message
        looked = yield from self._look(asked.look_for_message(message), WAIT_MS)
        if looked is None:
            raise still_adding(message.id, f"{WAIT_MS} ms")
        [same] = looked.row
        for _ in range(ROUNDS_MAX):
            if same is not None:
                if not same:
                    raise message_reused(message.id)
                return False
            try:
                rows = yield from self._insert(asked.add_message(message), WAIT_MS, looked)
            except Duplicate:
                same = yield from self._find(call)
                continue
            if rows is None:
                raise still_adding(message.id, f"{WAIT_MS} ms")
            return True
        raise StoreUnavailable(f"the message {message.id!r} came and went {ROUNDS_MAX} times while it was being added")

    def _find(self, call: AddMessage) -> Script[object]:
        for row in (yield from do(Statement(asked.find_message(call.message)))):
            return row[0]
        return None

    def _look(self, sql: str, bound_ms: int) -> Script[LookedRow | None]:
        """None if the bound was reached."""
        try:
            [row] = yield from do(Statement(setting(limited(max(LOOK_LEAST_MS, bound_ms)), sql)))
        except LockWaitEnded:
            return None
        number, readable_from, waits_undo_all, now_ms, *found = row
        refuse_unfit(number or 0, readable_from or 0, KNOWN, HERE)
        return LookedRow(tuple(found), now_ms, bool(waits_undo_all))

    def _insert(self, sql: str, bound_ms: int, looked: LookedRow) -> Script[Rows | None]:
        """Insert, and wait for the transaction that is in the way; None when the bound on that is reached."""
        for limit in (NO_WAIT, limited(bound_ms)):
            if limit is NO_WAIT and looked.waits_undo_all:
                continue
            try:
                return (yield from do(Statement(setting(f"{STRICT}, {limit}", sql))))
            except LockWaitEnded:
                pass
        return None


def _record(row: tuple[object, ...], key: Key) -> Record | None:
    """Of a key without a record, all columns are NULL."""
    return None if row[0] is None else checked(to_record(queries.readable(row)), key)
