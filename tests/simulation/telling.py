"""How calls and replies read in a trace."""

from __future__ import annotations

from semel.core.effects import Claim, Complete, Doubts, Read, Release, Renew
from semel.core.records import Acquired, Key, Lease, Occupied, Record

EPOCH_MS = 1_000_000_000
"""The store's clock begins here; a trace counts from it."""


def told(value: object) -> str:
    match value:
        case str():
            return value
        case list() | tuple():
            return ", ".join(map(told, value))
        case Claim(key, fingerprint, owner):
            return f"claim {_key(key)} by {_who(owner)}, request {fingerprint[2:6]}"
        case Renew(lease):
            return f"renew {_lease(lease)}"
        case Complete(lease, result):
            return f"complete {_lease(lease)} with {result.format} ({len(result.payload)} bytes)"
        case Release(lease):
            return f"release {_lease(lease)}"
        case Read(key):
            return f"read {_key(key)}"
        case Doubts(before):
            return f"what is in doubt of {'everything' if before is None else told(before)}"
        case frozenset():
            return ", ".join(sorted(map(told, value))) or "nothing"
        case Acquired(lease):
            return f"granted, attempt {lease.attempt}, until {_at(lease.until_ms)}"
        case Lease():
            return f"until {_at(value.until_ms)}"
        case Occupied(record, now_ms):
            return f"occupied at {_at(now_ms)}: {told(record)}"
        case Record():
            ends = f"lease until {_at(value.lease_until_ms)}, expires {_at(value.expires_ms)}"
            return f"{value.state.value} by {_who(value.owner)}, attempt {value.attempt}, {ends}"
        case _:
            return repr(value)


def _key(key: Key) -> str:
    return f"{key.tenant} {key.scope} {key.name}"


def _lease(lease: Lease) -> str:
    return f"{_key(lease.key)} of {_who(lease.owner)}, attempt {lease.attempt}"


def _who(owner: str) -> str:
    """The request that an owner belongs to; a monitor that only looks has none."""
    return owner.partition(".")[2] or owner[:8] or "nobody"


def _at(at_ms: int) -> str:
    return f"{at_ms - EPOCH_MS} ms"
