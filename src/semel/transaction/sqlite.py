"""Claim and complete inside of an SQLite transaction.

The claim begins with a write: it waits for its turn there, and whoever was first has committed or rolled back by then.
A savepoint is the mark of the transaction: it is gone when somebody ends the transaction inside of the block.
"""

from __future__ import annotations

from semel.clock import wall_ms
from semel.core.effects import Claim, Complete, Read, do
from semel.core.records import Acquired, Key, Occupied, Record
from semel.errors import StoreError
from semel.stores.sql.statements import Script, Statement
from semel.stores.sqlite import scripts
from semel.transaction.errors import SavepointGone
from semel.transaction.scripts import Claimed, Granted, ended_inside


class SqliteEngine:
    tells_twins = False  # there is one writer at a time, whatever it writes

    def claim(self, call: Claim, wait_ms: int | None) -> Script[Claimed]:
        if wait_ms is None:
            [reply] = yield from scripts.claim([call], wall_ms())
        else:
            reply = yield from self._within(wait_ms, call)
        if isinstance(reply, Occupied):
            return reply
        mark = f'"semel:{call.owner}"'
        yield from do(Statement(f"SAVEPOINT {mark}"))
        return Granted(reply.lease, mark)

    def _within(self, wait_ms: int, call: Claim) -> Script[Acquired | Occupied]:
        """Claim with another bound than the connection's own, which it has again afterwards."""
        [(before,)] = yield from do(Statement("PRAGMA busy_timeout"))
        yield from do(Statement(f"PRAGMA busy_timeout = {wait_ms}"))
        try:
            [reply] = yield from scripts.claim([call], wall_ms())
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
        [done] = yield from scripts.complete([call], wall_ms())
        if not done:
            raise ended_inside(call.lease.key)

    def read(self, key: Key) -> Script[Record | None]:
        [found] = yield from scripts.read([Read(key)], wall_ms())
        return found
