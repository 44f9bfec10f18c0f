"""The consumers' database: that of the transactions, and counts of failed attempts in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.core.records import Key
from semel.stores.postgres import attempts
from semel.stores.sql.digests import digest_of
from simulation.transactions.database import Database, Meaning, Row, Transaction

COUNT = attempts.count(attempts.TABLE)
MARK = b"failed attempts of "


class MessageDatabase(Database):
    """A count is a row of its own, under a name that no record has."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self._waiting[COUNT] = self._count_attempt

    def _count_attempt(self, transaction: Transaction, params: Sequence[Any]) -> Meaning:
        digest, retention_ms, error, now_ms = params
        name = MARK + digest
        yield from self._turn(transaction, name)
        now_ms = self.now_ms() if now_ms is None else now_ms
        count, expires_ms, _ = self._seen(transaction, name) or (0, 0, "")
        count = 1 if expires_ms <= now_ms else count + 1
        transaction.records[name] = (count, now_ms + retention_ms, error)
        return [(count,)]

    def attempts_of(self, key: Key) -> int:
        """How many failed attempts are committed."""
        row = self.records.get(MARK + digest_of(key))
        return 0 if row is None else int(row[0])

    def record_of(self, key: Key) -> Row | None:
        return self.records.get(digest_of(key))
