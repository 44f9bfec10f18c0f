"""What the servers of the arm are told by the environment, and what both kinds of them share."""

from __future__ import annotations

import json
import os
import random
import uuid
from itertools import count

from blackbox.exactly_once.connections import CHANGE, INSERT, Values
from blackbox.exactly_once.journal import Journal
from blackbox.exactly_once.orders import LEASE_S, RESULT_MAX, Change, Kind, Order, Write
from blackbox.exactly_once.seeded import FAULTS
from semel import OutcomeUnknown, Policy

URLS: dict[str, str] = json.loads(os.environ["SEMEL_BOX_URLS"])
SEED = os.environ["SEMEL_BOX_SEED"]
if fault := os.environ["SEMEL_BOX_FAULT"]:
    FAULTS[fault].seed()
SECRET = "the same for every server"
POLICY = Policy(guarantee="exactly-once", required=True, lease=LEASE_S, result_max=RESULT_MAX)
journal = Journal(os.environ["SEMEL_BOX_JOURNAL"])
_runs = count(1)


class Attempt:
    """One run of a handler, as the journal has it while it is entered."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.run = uuid.uuid4().hex
        self.chance = random.Random(f"{SEED} {order.key} {next(_runs)}")

    def __enter__(self) -> Attempt:
        journal.note("begun", self.order.arm, self.order.key, self.run)
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        how = "answered" if raised is None else raised.__name__
        journal.note("ended", self.order.arm, self.order.key, self.run, how)

    def wrote(self, asked_s: float) -> None:
        """A statement has succeeded that was asked for at `asked_s`: then the transaction was alive.

        Not now: a loop that was blocked, or a process that stood still, hears of it when its connection may be cut.
        """
        journal.note("wrote", self.order.arm, self.order.key, self.run, at_s=asked_s)

    def fault(self, what: str) -> None:
        journal.note("fault", self.order.arm, self.order.key, self.run, f"handler {what}")

    def statement(self, step: Write | Change) -> tuple[str, Values]:
        if isinstance(step, Change):
            return CHANGE, {"id": step.account}
        values = {"arm": self.order.arm, "name": self.order.key, "run": self.run, "position": step.position}
        return INSERT, values


def raised(kind: Kind) -> Exception:
    """What a handler raises that gives up by itself."""
    return OutcomeUnknown("on purpose") if kind is Kind.UNKNOWN else ArithmeticError("on purpose")
