"""What becomes of a delivery, as one table.

A consumer finds out how a delivery ended (`Handling`). The table says what the broker is told (`Settling`), and whether
the delivery counts as an attempt. The adapters of the brokers only carry that out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from semel.core.records import Member

ATTEMPTS_MAX = 5
FIRST_DELAY_MS, DELAY_MS_MAX = 1_000, 300_000
"""The delay before a message that failed is delivered again: it doubles with each attempt, up to five minutes."""


class Handling(Member):
    """How a delivery ended."""

    HANDLED = "the handler returned, and its record is stored"
    DUPLICATE = "it was handled before"
    IN_PROGRESS = "another delivery of it is being handled"
    NOTHING_DONE = "the handler declared that nothing was done"
    UNCOMMITTED = "its transaction did not commit, or the reply to COMMIT was lost"
    RAISED = "the handler raised, and attempts are left"
    EXHAUSTED = "the handler raised, and its attempts are used up"
    FINAL = "the handler raised a final error"
    UNNAMED = "it has no message id, or none that can be used"
    REUSED = "its id belongs to a message with another payload"
    UNKNOWN = "a delivery was cut off or failed, and the guarantee is at-most-once"
    UNREADABLE = "its record cannot be read by this version"
    STORE_AWAY = "the store cannot decide"


class Settling(Member):
    """What the broker is told."""

    ACKNOWLEDGE = "acknowledge"
    DELIVER_AGAIN = "deliver again"
    DEAD_LETTER = "dead letter"
    PARK = "park as a dead letter"
    STOP = "stop consuming, deliver again later"


class VerdictRow(Struct, frozen=True):
    """One row of the table."""

    settling: Settling
    counted: bool = False


VERDICTS: Mapping[Handling, VerdictRow] = MappingProxyType(
    {
        Handling.HANDLED: VerdictRow(Settling.ACKNOWLEDGE),
        Handling.DUPLICATE: VerdictRow(Settling.ACKNOWLEDGE),
        Handling.IN_PROGRESS: VerdictRow(Settling.DELIVER_AGAIN),
        Handling.NOTHING_DONE: VerdictRow(Settling.DELIVER_AGAIN),
        Handling.UNCOMMITTED: VerdictRow(Settling.DELIVER_AGAIN),
        Handling.RAISED: VerdictRow(Settling.DELIVER_AGAIN, counted=True),
        Handling.EXHAUSTED: VerdictRow(Settling.DEAD_LETTER, counted=True),
        Handling.FINAL: VerdictRow(Settling.DEAD_LETTER),
        Handling.UNNAMED: VerdictRow(Settling.DEAD_LETTER),
        Handling.REUSED: VerdictRow(Settling.DEAD_LETTER),
        Handling.UNKNOWN: VerdictRow(Settling.PARK),
        Handling.UNREADABLE: VerdictRow(Settling.PARK),
        Handling.STORE_AWAY: VerdictRow(Settling.STOP),
    }
)


class Verdict(Struct, frozen=True):
    """What an adapter does with one delivery."""

    handling: Handling
    settling: Settling
    counted: bool
    reason: str = ""
    """Why, for a dead letter and for the log: the error's own words."""
    delay_ms: int = 0
    """How long to wait before it is delivered again, or before consuming goes on."""
    attempt: int = 0
    """How many attempts have failed, where they are counted."""


def judge(handling: Handling, reason: str = "", *, attempt: int = 0, delay_ms: int | None = None) -> Verdict:
    """The verdict for a delivery that ended like this."""
    row = VERDICTS[handling]
    if row.settling not in (Settling.DELIVER_AGAIN, Settling.STOP):
        delay_ms = 0
    elif delay_ms is None:
        delay_ms = delay_after_ms(attempt)
    return Verdict(handling, row.settling, row.counted, reason or handling.value, delay_ms, attempt)


def delay_after_ms(attempt: int) -> int:
    """The delay after so many failed attempts."""
    doubled = min(max(0, attempt - 1), DELAY_MS_MAX.bit_length())
    return min(FIRST_DELAY_MS << doubled, DELAY_MS_MAX)
