"""What a copy may answer, how long it may live, and what time it is in the database at the latest. Pure.

A copy must not answer longer than its record, and the record's times are those of the database's clock. Neither the
clock of Redis nor the caller's wall clock is compared with it. A process knows the time there from a reply of the
database. At the moment of the reply it was `told_ms`, so now it is at most as much later as has passed here since the
question was asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.core.copies import TICKET_MS
from semel.core.effects import Claim
from semel.core.records import Occupied, Record
from semel.stores.tiered.layout import Copy

SIGHTING_MS = 60_000
"""How long the last reply of the database tells the time: this is how late a jump of its clock is noticed."""
DRIFT = 1_000
"""Two clocks differ by at most one part in so many: twice what bad ones do."""
COPY_MAX = 262_144
"""Bytes of an answer that is copied. A larger one comes from the database."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """The database told its time, in reply to a question that was asked at `asked_ms` of a clock that never jumps."""

    asked_ms: int
    told_ms: int

    def latest_ms(self, now_ms: int) -> int | None:
        """The database's time now, at the latest. None when the sighting is too old to tell."""
        passed_ms = now_ms - self.asked_ms
        if not 0 <= passed_ms <= SIGHTING_MS:
            return None
        return self.told_ms + passed_ms + passed_ms // DRIFT


def answer(copy: Copy, call: Claim, now_ms: int, hint_ms: int) -> Occupied | None:
    """The reply to `call` at `now_ms` of the database, if the copy can tell. Else the database is asked."""
    record = copy.record
    if record.key != call.key:
        return None
    if record.answers(now_ms) or _is_hint(copy, call, now_ms, hint_ms):
        return Occupied(record, now_ms)
    return None


def _is_hint(copy: Copy, call: Claim, now_ms: int, hint_ms: int) -> bool:
    """Whether the copy tells that another owner's work is running. Its lease may have been ended since it was read."""
    record = copy.record
    is_live = record.in_progress() and now_ms < record.lease_until_ms
    return is_live and record.owner != call.owner and now_ms - copy.read_ms < hint_ms


def is_worth_a_copy(record: Record, hint_ms: int) -> bool:
    if record.result is not None:
        return len(record.result.payload) <= COPY_MAX
    return record.in_progress() and hint_ms > 0


def find_life_ms(record: Record, now_ms: int, keep_ms: int, hint_ms: int) -> int:
    """How long a copy of what was read by `now_ms` may live; 0 when there is to be none.

    A copy is written within `TICKET_MS` or never. That time counts as part of its life, so its end is not later either.
    """
    if not is_worth_a_copy(record, hint_ms):
        return 0
    if record.answers(now_ms):
        return max(0, min(keep_ms, record.expires_ms - now_ms - TICKET_MS))
    return max(0, min(hint_ms, record.lease_until_ms - now_ms)) if record.in_progress() else 0
