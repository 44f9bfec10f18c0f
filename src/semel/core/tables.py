"""The life of a key as two tables.

The model and the protocol look their decisions up here; the docs' diagrams are drawn from here.

`CLAIM` says what a claim gets, by the situation of the record and whether the fingerprint is the same. `SETTLE` says
what happens to the key when the work has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from semel.core.records import Member, Record


class Situation(Member):
    ABSENT = "none, or past retention"
    LIVE = "in_progress, lease live"
    LAPSED_OPEN = "in_progress, lapsed, take-over allowed (at-least-once)"
    LAPSED = "in_progress, lapsed, at-most-once"
    FINISHED = "succeeded / failed"
    TOMBSTONE = 'succeeded / failed, past retention, completed under expired="refuse"'


class Ruling(Member):
    GRANT = "grant, attempt 1"
    TAKE_OVER = "grant, attempt + 1"
    IN_FLIGHT = "in flight"
    UNKNOWN = "unknown (reconcile if a reconciler is given)"
    REPLAY = "replay"
    EXPIRED = "expired"
    MISMATCH = "mismatch"


CLAIM: Mapping[Situation, tuple[Ruling, Ruling]] = MappingProxyType(
    {  #                        same fingerprint     other fingerprint
        Situation.ABSENT: (Ruling.GRANT, Ruling.GRANT),
        Situation.LIVE: (Ruling.IN_FLIGHT, Ruling.MISMATCH),
        Situation.LAPSED_OPEN: (Ruling.TAKE_OVER, Ruling.MISMATCH),
        Situation.LAPSED: (Ruling.UNKNOWN, Ruling.MISMATCH),
        Situation.FINISHED: (Ruling.REPLAY, Ruling.MISMATCH),
        Situation.TOMBSTONE: (Ruling.EXPIRED, Ruling.MISMATCH),
    }
)


def situation(record: Record, now_ms: int, *, takeover: bool) -> Situation:
    """Name what `record` is at `now_ms`."""
    if record.answers(now_ms):
        return Situation.FINISHED
    if record.past_retention(now_ms):
        return Situation.ABSENT
    if record.lapsed(now_ms):
        return Situation.LAPSED_OPEN if takeover else Situation.LAPSED
    return Situation.LIVE if record.completed_ms is None else Situation.TOMBSTONE


def ruling(where: Situation, *, same: bool) -> Ruling:
    return CLAIM[where][0 if same else 1]


class Ending(Member):
    SUCCEEDED = "returned an answer, status < 400"
    FAILED = "returned an answer, status >= 400"
    REFUSED = 'answered a status that means "refused before running"'
    RAISED = "raised"
    NOTHING_DONE = "declared nothing_done() / raised NotExecuted"
    INTERRUPTED = "cancelled, timed out, killed, lease lost"
    UNCERTAIN = "raised OutcomeUnknown, or from a function an error that is not final"
    TOO_LARGE = "answer larger than the limit"


class Disposal(Member):
    COMPLETE = "complete"
    RELEASE = "release"
    LEAVE = "neither: the effect is unknown, the lease lapses"
    LAPSE = "end the lease: the effect is unknown at once"


SETTLE: Mapping[Ending, Disposal] = MappingProxyType(
    {
        Ending.SUCCEEDED: Disposal.COMPLETE,
        Ending.FAILED: Disposal.COMPLETE,
        Ending.REFUSED: Disposal.RELEASE,
        Ending.RAISED: Disposal.COMPLETE,
        Ending.NOTHING_DONE: Disposal.RELEASE,
        Ending.INTERRUPTED: Disposal.LEAVE,
        Ending.UNCERTAIN: Disposal.LAPSE,
        Ending.TOO_LARGE: Disposal.COMPLETE,
    }
)
