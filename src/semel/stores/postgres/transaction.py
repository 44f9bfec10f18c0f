"""Claim, complete and add a message inside of a PostgreSQL transaction: one statement each, unless another one is in
the way.

An insert waits for as long as the twin's transaction is open, so the claim first tries an advisory lock on the key,
which tells without waiting. A claim that does not get it goes the long way: savepoint, lock timeout, then one statement
that waits for the lock and inserts. The unique key decides, not the lock: two keys that share a lock (one pair in 2^64)
only wait for each other, within the same bound.

Adding a message works nearly the same way, by its id. Its long way inserts first, and takes the lock as well as soon as
it can, because the message may share its lock: PostgreSQL lets go of a transaction's rows a moment before its locks. A
random id needs no lock. A derived id has the lock of its operation, which a claim in the same transaction holds
already. Given ids share a few locks: a transaction that adds many would fill the server's table of locks. If two ids
share a lock while one of them is added twice, the bound on waiting may be missed.
"""

from __future__ import annotations

from typing import assert_never
from zlib import crc32

from semel.core.attempts import CountAttempt
from semel.core.effects import Claim, Complete, do
from semel.core.outbox import AddMessage, IdOrigin
from semel.core.records import Key, Lease, Occupied, Record
from semel.errors import StoreUnavailable
from semel.stores.postgres import attempts
from semel.stores.postgres import transaction_queries as queries
from semel.stores.postgres.transaction_queries import BOOK, KNOWN, LIMIT_WAIT, LOCK, OUTBOX, TABLE, UNLIMIT
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
from semel.stores.sql.errors import LockWaitEnded
from semel.stores.sql.headers import headers_text
from semel.stores.sql.migrations import refuse_unfit
from semel.stores.sql.rows import CODES, checked, to_record
from semel.stores.sql.statements import Rows, Script, Statement

WAIT_MS = 10_000
LOCK_MS = 50
"""How long a message that was added waits for its lock. Then another one has it, and this one does without."""
GIVEN_LOCKS = 512
FIRST_LOCK = 0x6D657373 << 32  # "mess"


class PostgresEngine:
    """The scripts for the table in one schema; "" is wherever the connection's search path finds it."""

    tells_twins = True

    def __init__(self, schema: str = "") -> None:
        place = f'"{schema.replace(chr(34), chr(34) * 2)}".' if schema else ""
        table, book, self._outbox = f"{place}{TABLE}", f"{place}{BOOK}", f"{place}{OUTBOX}"
        self._book = book
        self._claim, self._read = queries.claim(table, book), queries.read(table, book)
        self._insist, self._complete = queries.insist(table), queries.complete(table)
        self._attempts = f"{place}{attempts.TABLE}"

    def claim(self, call: Claim, wait_ms: int | None) -> Script[Claimed]:
        key, digest = call.key, digest_of(call.key)
        named = [digest, key.tenant, key.scope, key.name]
        given = [*named, call.fingerprint, call.owner, call.lease_ms, call.retention_ms, _lock(digest)]
        rows = yield from self._ask(self._claim, given)
        for _ in range(ROUNDS_MAX):
            if rows and rows[0][0] is not None:
                mark, until_ms = rows[0][:2]
                return Granted(Lease(call.key, call.owner, 1, until_ms), mark)
            if found := _found(rows, key):
                return found
            rows = yield from self._wait_for(key, given, WAIT_MS if wait_ms is None else max(1, wait_ms))
            if not rows:  # another caller has the key, and only a new statement sees its record
                rows = yield from self._ask(self._read, [digest])
        raise StoreUnavailable(f"{call.key} changed hands {ROUNDS_MAX} times while it was being claimed")

    def _ask(self, sql: str, params: list[object]) -> Script[Rows]:
        """The rows of a claim or a look, if the schema is one that this version can use."""
        rows = yield from do(Statement(sql, params))
        for version, *_ in rows:
            number, readable_from = version or (0, 0)
            refuse_unfit(number, readable_from, KNOWN, HERE)
        return [tuple(row[1:]) for row in rows]

    def _wait_for(self, key: Key, given: list[object], wait_ms: int) -> Script[Rows]:
        rows = yield from self._insert_within(wait_ms, self._insist, given)
        if rows is None:
            raise still_running(key, f"{wait_ms} ms")
        return rows

    def _insert_within(self, wait_ms: int, sql: str, given: list[object]) -> Script[Rows | None]:
        """Insert, and wait for the transaction that is in the way; None when the bound on that is reached.

        The savepoint keeps the transaction usable then.
        """
        yield from do(Statement("SAVEPOINT semel"))
        [(before, _)] = yield from do(Statement(LIMIT_WAIT, [str(wait_ms)]))
        try:
            rows = yield from do(Statement(sql, given))
        except LockWaitEnded:
            yield from do(Statement("ROLLBACK TO SAVEPOINT semel"))
            yield from do(Statement("RELEASE SAVEPOINT semel"))
            return None
        yield from do(Statement(UNLIMIT, [before]))
        yield from do(Statement("RELEASE SAVEPOINT semel"))
        return rows

    def _lock_late(self, lock: object) -> Script[None]:
        """Take the lock of a message that was added already, within a bound of its own."""
        yield from do(Statement("SAVEPOINT semel"))
        [(before, _)] = yield from do(Statement(LIMIT_WAIT, [str(LOCK_MS)]))
        try:
            yield from do(Statement(LOCK, [lock]))
        except LockWaitEnded:
            yield from do(Statement("ROLLBACK TO SAVEPOINT semel"))
        else:
            yield from do(Statement(UNLIMIT, [before]))
        yield from do(Statement("RELEASE SAVEPOINT semel"))

    def complete(self, call: Complete, mark: str) -> Script[None]:
        key, result = call.lease.key, call.result
        stored = [CODES[result.state], result.format, result.payload, call.refuse_ms, call.retention_ms]
        if not (yield from do(Statement(self._complete, [digest_of(key), call.lease.owner, *stored, mark]))):
            raise ended_inside(key)

    def count_attempt(self, call: CountAttempt) -> Script[int]:
        return attempts.count_attempt(self._attempts, call, None)

    def read(self, key: Key) -> Script[Record | None]:
        found = _found((yield from self._ask(self._read, [digest_of(key)])), key)
        return None if found is None else found.record

    def add_message(self, call: AddMessage) -> Script[bool]:
        message, lock = call.message, _lock_of(call)
        given: list[object] = [message.id, message.topic, message.key, message.content_type]
        given += [headers_text(message.headers), message.payload, lock]
        add = queries.add_message(self._outbox, self._book)
        for _ in range(ROUNDS_MAX):
            [(added, same, ours)] = yield from self._ask(add, given)
            if added:
                return True
            if same is not None:
                if not same:
                    raise message_reused(message.id)
                return False
            if not ours:
                rows = yield from self._insert_within(WAIT_MS, queries.insist_on_message(self._outbox), given)
                if rows is None:
                    raise still_adding(message.id, f"{WAIT_MS} ms")
                if isinstance(call.origin, Key) and any(not locked for *_, locked in rows):
                    yield from self._lock_late(lock)
                if rows:
                    return True
        raise StoreUnavailable(f"the message {message.id!r} came and went {ROUNDS_MAX} times while it was being added")


def _found(rows: Rows, key: Key) -> Occupied | None:
    """The record that is there, unless it is past retention, which is as if there were none."""
    for _, _, now_ms, *row in rows:
        if row[0] is not None:
            record = to_record(tuple(row))
            return None if record.past_retention(now_ms) else Occupied(checked(record, key), now_ms)
    return None


def _lock(digest: bytes) -> int:
    """The key as the number of an advisory lock."""
    return int.from_bytes(digest[-8:], signed=True)


def _lock_of(call: AddMessage) -> int | None:
    """The number of the lock of those transactions that may add this message, too."""
    match call.origin:
        case IdOrigin.RANDOM:
            return None
        case IdOrigin.GIVEN:
            return FIRST_LOCK + crc32(call.message.id.encode()) % GIVEN_LOCKS
        case Key():
            return _lock(digest_of(call.origin))
        case _:
            assert_never(call.origin)
