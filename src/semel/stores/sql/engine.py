"""What an engine must be able to do inside of a transaction of yours: claim a key there, finish its record, and add a
message to the outbox.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from semel.core.attempts import CountAttempt
from semel.core.effects import Claim, Complete
from semel.core.outbox import AddMessage
from semel.core.records import Key, Lease, Occupied, Record
from semel.errors import InProgress, MessageReused, Misuse
from semel.stores.sql.errors import RetryTransaction
from semel.stores.sql.statements import Script

LEASE_MS = 1
"""No caller sees the lease of a record that is not committed. A commit that is too early makes the outcome unknown."""
ROUNDS_MAX = 20
"""How often a key that changes hands in the same moment is claimed again."""
RETRY_AFTER_S = 1.0
HERE = "the database of this transaction"
"""How it is called in messages: a connection of yours does not say where it leads."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The record is inserted: run the work. `mark` tells this transaction from every other one."""

    lease: Lease
    mark: str


Claimed = Granted | Occupied


class Engine(Protocol):
    """Scripts for one kind of database."""

    @property
    def tells_twins(self) -> bool:
        """Whether a claim can tell a twin, which it need not wait for, from other transactions, which it must."""
        ...

    def claim(self, call: Claim, wait_ms: int | None) -> Script[Claimed]: ...
    def complete(self, call: Complete, mark: str) -> Script[None]:
        """Finish the record, in the transaction that claimed it and in no other."""
        ...

    def read(self, key: Key) -> Script[Record | None]: ...
    def count_attempt(self, call: CountAttempt) -> Script[int]:
        """Count a failed attempt, in a transaction of its own: the one that failed is rolled back."""
        ...

    def add_message(self, call: AddMessage) -> Script[bool]:
        """Add a message. False if the same one is there already; `MessageReused` if its id is another one's."""
        ...


def still_running(key: Key, waited: str) -> InProgress:
    return InProgress(
        f"another transaction with the key {key.name!r} of {key.scope} is still open after {waited}: "
        "ask again later, with the same key",
        RETRY_AFTER_S,
    )


def ended_inside(key: Key) -> Misuse:
    return Misuse(
        f"the transaction of {key.name!r} was committed or rolled back inside of its block (or the connection is in "
        "autocommit mode), so what the block wrote and its record are not one. Leave ending the transaction to the "
        "code around the block. If it was committed, the outcome of the key is unknown until you resolve it."
    )


def still_adding(id: str, waited: str) -> RetryTransaction:
    return RetryTransaction(
        f"another transaction that adds the message {id!r} is still open after {waited}: roll back, and run all of "
        "this one again later"
    )


def message_reused(id: str) -> MessageReused:
    return MessageReused(
        f"the id {id!r} belongs to a message in the outbox with another topic, key, payload, content type or headers: "
        "nothing was added. Give each message an id of its own (id=). An id that was derived from an operation: a "
        "repeat must publish the same messages in the same order."
    )
