"""When each operation held its key at the server: in an open transaction, or by a committed record that is owed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.core.records import Key, Record
from simulation.transactions.database import Transaction

if TYPE_CHECKING:
    from simulation.transactions.world import TransactionWorld

Held = tuple[Key, str]
"""A key, and the fingerprint of the request that has it."""


class Holdings:
    def __init__(self, world: TransactionWorld) -> None:
        self.world = world
        self.commits: set[int] = set()
        """The numbers of transactions that committed something."""
        self._open: dict[Held, set[int]] = {}
        self._free_s: dict[Held, float] = {}
        """The last moment in which nothing held it, if something does now."""
        self._until_ms: dict[Held, int] = {}

    def inserted(self, transaction: Transaction, record: Record) -> None:
        held = (record.key, record.fingerprint)
        if not self._is_held(held):
            self._free_s[held] = self.world.time.now_s
        self._open.setdefault(held, set()).add(transaction.number)

    def ends(self, transaction: Transaction) -> None:
        for numbers in self._open.values():
            numbers.discard(transaction.number)

    def has_been_claimed(self, key: Key) -> bool:
        return any(held == key for held, _ in self._open)

    def owed(self, record: Record) -> None:
        self._until_ms[record.key, record.fingerprint] = record.expires_ms

    def was_free(self, held: Held, since_s: float) -> bool:
        """Whether there was a moment since then in which the operation neither ran nor was committed."""
        return not self._is_held(held) or self._free_s[held] >= since_s

    def _is_held(self, held: Held) -> bool:
        return bool(self._open.get(held)) or self.world.database_ms() < self._until_ms.get(held, 0)
