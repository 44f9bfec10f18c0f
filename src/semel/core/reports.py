"""Decisions as events."""

from __future__ import annotations

from typing import assert_never

from semel.core.decisions import (
    Decision,
    Expired,
    InFlight,
    Left,
    Mismatch,
    NotStored,
    Released,
    Replay,
    Run,
    Settlement,
    Stored,
    Superseded,
    Undecided,
    Unknown,
    Unreadable,
)
from semel.core.events import Event, EventKind
from semel.core.records import NOBODY, Key, Lease, Record, Result


def acquired(key: Key, decision: Decision, asker: str) -> Event:
    """The event for the decision about a claim by `asker`, the owner that the claim named."""
    match decision:
        case Run(lease):
            return Event(
                EventKind.CLAIMED if lease.attempt == 1 else EventKind.TAKEN_OVER, key, lease.attempt, owner=lease.owner
            )
        case Replay(record):
            return Event(
                EventKind.REPLAYED,
                key,
                record.attempt,
                owner=record.owner,
                state=record.state,
                ran_ms=_ran_ms(record),
                asker=asker,
            )
        case InFlight(record):
            return Event(EventKind.IN_FLIGHT, key, record.attempt, owner=record.owner, asker=asker)
        case Unknown(record):
            return Event(EventKind.UNKNOWN, key, owner="" if record is None else record.owner, asker=asker)
        case Mismatch():
            return Event(EventKind.MISMATCHED, key, asker=asker)
        case Expired():
            return Event(EventKind.EXPIRED, key, asker=asker)
        case Unreadable(error):
            return Event(EventKind.UNREADABLE, key, detail=str(error), asker=asker)
        case Undecided(error):
            return Event(EventKind.STORE_FAILED, key, detail=str(error), asker=asker)
        case _:
            assert_never(decision)


def _ran_ms(record: Record) -> int | None:
    """How long the work took. Not known after a take-over, nor when a reconciler or an operator resolved the key."""
    if record.completed_ms is None or record.attempt != 1 or record.owner == NOBODY:
        return None
    return record.completed_ms - record.created_ms


def settled(lease: Lease, settlement: Settlement, result: Result | None) -> Event:
    match settlement:
        case Stored():
            state = None if result is None else result.state
            return Event(EventKind.COMPLETED, lease.key, lease.attempt, owner=lease.owner, state=state)
        case Released():
            return Event(EventKind.RELEASED, lease.key, lease.attempt, owner=lease.owner)
        case Left():
            return Event(EventKind.LEFT, lease.key, lease.attempt, owner=lease.owner)
        case Superseded():
            return Event(EventKind.SUPERSEDED, lease.key, lease.attempt, owner=lease.owner)
        case NotStored(error):
            return Event(EventKind.NOT_STORED, lease.key, lease.attempt, str(error), owner=lease.owner)
        case _:
            assert_never(settlement)
