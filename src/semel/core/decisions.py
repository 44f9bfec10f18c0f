"""What a claim's reply and the end of an attempt mean for the caller: one value for each case."""

from __future__ import annotations

from msgspec import Struct

from semel.core.records import Lease, Record, Result
from semel.errors import RecordUnreadable, StoreError


class Run(Struct, frozen=True, gc=False):
    """Do the work: the lease is yours."""

    lease: Lease


class Replay(Struct, frozen=True, gc=False):
    """Answer from the stored result without running anything."""

    record: Record
    result: Result


class InFlight(Struct, frozen=True):
    """The first call is still running. The caller should ask again when that call's lease could have ended."""

    record: Record
    retry_after_ms: int


class Unknown(Struct, frozen=True):
    """The executor was lost, so the store cannot tell whether the work took effect."""

    record: Record | None


class Mismatch(Struct, frozen=True):
    """The key belongs to another request."""


class Expired(Struct, frozen=True):
    """The key was used, and its result is past retention."""


class Unreadable(Struct, frozen=True):
    """A record is there but this version cannot read it."""

    error: RecordUnreadable


class Undecided(Struct, frozen=True):
    """The store cannot decide, so nothing may run. The claim should be abandoned in the background."""

    error: StoreError


Held = Replay | InFlight | Unknown | Mismatch | Expired | Unreadable | Undecided
"""What a claim that was not granted may find."""


class Stored(Struct, frozen=True):
    """The store acknowledged the result: the answer may be sent."""


class Released(Struct, frozen=True):
    """The key was given back: the next repeat is a first call."""


class Left(Struct, frozen=True):
    """How the work ended is not known: the lease lapses, and the outcome is unknown."""


class Superseded(Struct, frozen=True):
    """Another executor took the key over: answer with what the store holds now, never with this attempt's result."""

    decision: Held


class NotStored(Struct, frozen=True):
    """The store did not acknowledge the result: the answer is sent with a mark, and the key never re-runs silently."""

    error: StoreError


STORED = Stored()
Decision = Run | Held
Settlement = Stored | Released | Left | Superseded | NotStored
