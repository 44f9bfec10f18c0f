"""A shop that takes payments: each one is a line in a ledger, which counts effects whatever is returned.

`python -m functions.shop URL LEDGER HOLD GUARANTEE ORDER…` pays each order, in threads, and prints the receipts. It
works until the file HOLD is gone, or until it learns that its lease is lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import semel

T = TypeVar("T")
LEASE_S = 0.5
PATIENCE_S = 60.0
SCOPE = "shop.pay"
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Receipt:
    order: str
    amount: int
    attempt: int


def write(ledger: Path, line: str) -> None:
    with ledger.open("a") as file:  # one short write with O_APPEND: whole, whoever else writes
        file.write(f"{line}\n")


def lines(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


def payments(store: str, ledger: Path, hold: Path | None = None, **options: Any) -> Callable[[str, int], Receipt]:
    options.setdefault("policy", semel.Policy(lease=LEASE_S))

    @semel.idempotent(store=store, scope=SCOPE, key="order", **options)
    def pay(order: str, amount: int) -> Receipt:
        operation = semel.current_operation()
        assert operation is not None
        write(ledger, f"{order} {operation.attempt} {operation.derive('bank')}")
        while hold is not None and hold.exists() and not operation.lost:
            time.sleep(0.01)
        return Receipt(order, amount, operation.attempt)

    return pay


def when_over(call: Callable[[], T]) -> T:
    """Call again while the key is in progress: its lease has to lapse first, by the store's clock."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except semel.InProgress:
            assert time.monotonic() < deadline, "it is in progress for ever"
            time.sleep(0.02)


def start(url: str, ledger: Path, hold: Path, guarantee: str, *orders: str) -> subprocess.Popen[str]:
    """Another process pays, and holds."""
    hold.touch()
    command = [sys.executable, "-m", "functions.shop", url, str(ledger), str(hold), guarantee, *orders]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def main(url: str, ledger: str, hold: str, guarantee: str, *orders: str) -> None:
    pay = payments(url, Path(ledger), Path(hold), policy=semel.Policy(lease=LEASE_S, guarantee=cast(Any, guarantee)))
    with ThreadPoolExecutor(len(orders)) as threads:
        for receipt in threads.map(lambda order: pay(order, 5), orders):
            print(receipt)


if __name__ == "__main__":
    main(*sys.argv[1:])
