"""Claim, complete and add a message inside of an SQLite transaction.

A claim begins with a write: it waits for its turn there, and by then the transaction before it has committed or rolled
back. That write also looks at the version of the schema, each time: nothing about a connection of yours tells that it
was looked at before.
A savepoint is the mark of the transaction: it is gone when the block ends the transaction.
"""

from __future__ import annotations

from semel.core.attempts import CountAttempt
from semel.core.effects import Claim, Complete, Read, do
from semel.core.outbox import AddMessage
from semel.core.records import Acquired, Key, Occupied, Record
from semel.errors import StoreError
from semel.runtime.clock import wall_ms
from semel.store import Clock
from semel.stores.sql.engine import HERE, Claimed, Granted, ended_inside, message_reused
from semel.stores.sql.errors import SavepointGone
from semel.stores.sql.headers import headers_text
from semel.stores.sql.migrations import NEWEST, refuse_unfit
from semel.stores.sql.statements import Script, Statement
from semel.stores.sqlite import schema, scripts
from semel.stores.sqlite.attempts import count_attempt
from semel.stores.sqlite.clock import find_clock, make_clock

KNOWN = schema.MIGRATIONS[-1].number
# It changes nothing, and gives nothing if the schema fits; but it is a write, so that it waits for its turn.
FIND_UNFIT = f"""INSERT INTO semel_schema (number, title, readable_from)
    SELECT * FROM (SELECT number, title, readable_from FROM semel_schema ORDER BY number DESC LIMIT 1)
    WHERE number < {KNOWN} OR readable_from > {KNOWN}
    ON CONFLICT (number) DO UPDATE SET number = excluded.number RETURNING number, readable_from"""
ADD = """INSERT INTO semel_outbox (
        created_ms, available_ms, id, aggregatetype, aggregateid, content_type, headers, payload
    ) VALUES (:now, :now, :id, :topic, :key, :content_type, :headers, :payload)
    ON CONFLICT (id) DO NOTHING RETURNING sequence"""
IS_SAME = """SELECT aggregatetype = :topic AND aggregateid IS :key AND content_type = :content_type
    AND headers = :headers AND payload = :payload FROM semel_outbox WHERE id = :id"""


class SqliteEngine:
    tells_twins = False  # there is one writer at a time, whatever it writes

    def __init__(self) -> None:
        self._clock: Clock = wall_ms
        """That of the file, once a claim has found it: a connection leads to one file."""

    def claim(self, call: Claim, wait_ms: int | None) -> Script[Claimed]:
        reply = yield from (self._claim(call) if wait_ms is None else self._within(wait_ms, call))
        if isinstance(reply, Occupied):
            return reply
        mark = f'"semel:{call.owner}"'
        yield from do(Statement(f"SAVEPOINT {mark}"))
        return Granted(reply.lease, mark)

    def _begin(self) -> Script[None]:
        """Wait for the turn to write, look at the schema, and find the clock."""
        for number, readable_from in (yield from do(Statement(FIND_UNFIT))):
            refuse_unfit(number, readable_from, KNOWN, HERE)
        self._clock = yield from make_clock()

    def _claim(self, call: Claim) -> Script[Acquired | Occupied]:
        yield from self._begin()
        [reply] = yield from scripts.claim([call], self._clock())
        return reply

    def _within(self, wait_ms: int, call: Claim) -> Script[Acquired | Occupied]:
        """Claim with another bound than the connection's own, which it has again afterwards."""
        [(before,)] = yield from do(Statement("PRAGMA busy_timeout"))
        yield from do(Statement(f"PRAGMA busy_timeout = {wait_ms}"))
        try:
            reply = yield from self._claim(call)
        except StoreError:
            yield from do(Statement(f"PRAGMA busy_timeout = {before}"))
            raise
        yield from do(Statement(f"PRAGMA busy_timeout = {before}"))
        return reply

    def complete(self, call: Complete, mark: str) -> Script[None]:
        try:
            yield from do(Statement(f"RELEASE {mark}"))
        except SavepointGone:
            raise ended_inside(call.lease.key) from None
        [done] = yield from scripts.complete([call], self._clock())
        if not done:
            raise ended_inside(call.lease.key)

    def read(self, key: Key) -> Script[Record | None]:
        for number, readable_from in (yield from do(Statement(NEWEST))):
            refuse_unfit(number, readable_from, KNOWN, HERE)
        clock = (yield from find_clock()) or wall_ms
        [found] = yield from scripts.read([Read(key)], clock())
        return found

    def count_attempt(self, call: CountAttempt) -> Script[int]:
        clock = yield from make_clock()
        return (yield from count_attempt(call, clock()))

    def add_message(self, call: AddMessage) -> Script[bool]:
        yield from self._begin()
        message = call.message
        params = {
            "now": self._clock(),
            "id": message.id,
            "topic": message.topic,
            "key": message.key,
            "content_type": message.content_type,
            "headers": headers_text(message.headers),
            "payload": message.payload,
        }
        if (yield from do(Statement(ADD, params))):
            return True
        [(same,)] = yield from do(Statement(IS_SAME, params))
        if not same:
            raise message_reused(message.id)
        return False
