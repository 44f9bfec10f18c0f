"""The bank: the ledger of payments, in a file of its own. It pays whenever it is asked and there is money."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from semel.runtime.clock import wall_ms

OPENING = 250_000
"""What is in every account at first. Amounts are in cents."""
SHOWN = 50
SCHEMA = """CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY,
    account TEXT NOT NULL,
    reference TEXT NOT NULL,
    amount INTEGER NOT NULL,
    at_ms INTEGER NOT NULL
)"""
INDEX = "CREATE INDEX IF NOT EXISTS entries_of_account ON entries (account, reference)"
SELECT = "SELECT number, reference, amount, at_ms FROM entries WHERE account = ?"


@dataclass(frozen=True, slots=True)
class Entry:
    """Money that left an account. `reference` is what the payer called the payment; the bank does not look at it."""

    number: int
    reference: str
    amount: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class BankStatement:
    """An account: its newest entries first, and what all of them have left."""

    account: str
    opening: int
    balance: int
    count: int
    entries: list[Entry]


class Bank:
    """A payment is durable when `charge` returns. Each call opens a connection, so any thread or process may call."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with closing(self._open()) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(SCHEMA)
            database.execute(INDEX)

    def charge(self, account: str, reference: str, amount: int) -> Entry | None:
        """Take money from the account; None if there is too little, and nothing was taken."""
        at_ms = wall_ms()
        with closing(self._open()) as database:
            insert = (
                "INSERT INTO entries (account, reference, amount, at_ms) SELECT ?1, ?2, ?3, ?4 "
                "WHERE ?3 + (SELECT coalesce(sum(amount), 0) FROM entries WHERE account = ?1) <= ?5 RETURNING number"
            )
            found = database.execute(insert, (account, reference, amount, at_ms, OPENING)).fetchall()
        return Entry(found[0][0], reference, amount, at_ms) if found else None

    def find(self, account: str, reference: str) -> Entry | None:
        """What an operator asks after a crash: did this payment happen?"""
        with closing(self._open()) as database:
            row = database.execute(
                f"{SELECT} AND reference = ? ORDER BY number LIMIT 1", (account, reference)
            ).fetchone()
        return Entry(*row) if row else None

    def statement(self, account: str) -> BankStatement:
        with closing(self._open()) as database:
            totals = "SELECT count(*), coalesce(sum(amount), 0) FROM entries WHERE account = ?"
            count, spent = database.execute(totals, (account,)).fetchone()
            rows = database.execute(f"{SELECT} ORDER BY number DESC LIMIT {SHOWN}", (account,)).fetchall()
        return BankStatement(account, OPENING, OPENING - spent, count, [Entry(*row) for row in rows])

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=10, isolation_level=None)
