"""The bank: a ledger in a file of its own, which says what really happened. `python bank.py` prints its total."""

import os
import sqlite3
from contextlib import closing
from typing import Any


def open_ledger() -> sqlite3.Connection:
    ledger = sqlite3.connect(os.environ["BANK"], timeout=10)
    ledger.execute("CREATE TABLE IF NOT EXISTS charges (charge_id INTEGER PRIMARY KEY, order_name TEXT NOT NULL)")
    return ledger


def charge(order: str) -> None:
    """Charges again for an order that it has charged before: protecting it is not the bank's task."""
    with closing(open_ledger()) as ledger, ledger:
        ledger.execute("INSERT INTO charges (order_name) VALUES (?)", (order,))


def receipt(order: str) -> dict[str, Any] | None:
    """What the shop answers for an order that was charged, or None."""
    with closing(open_ledger()) as ledger:
        row = ledger.execute("SELECT charge_id FROM charges WHERE order_name = ?", (order,)).fetchone()
    return None if row is None else {"order": order, "charge": row[0]}


def totals() -> tuple[int, int]:
    """How many orders were charged, and how many charges there are."""
    with closing(open_ledger()) as ledger:
        found = ledger.execute("SELECT count(DISTINCT order_name), count(*) FROM charges").fetchone()
    return found[0], found[1]


if __name__ == "__main__":
    print("{} orders, {} charges".format(*totals()))
