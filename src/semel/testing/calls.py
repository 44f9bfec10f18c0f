"""The calls of a store, with samples for what most tests do not care about, and the replies of a claim taken apart."""

from __future__ import annotations

from semel.core.records import Acquired, Claimed, Key, Lease, Occupied, Record, Result
from semel.store import Store
from semel.testing.clock import ManualClock
from semel.testing.samples import ANSWER, LEASE_MS, RETENTION_MS, SAME


def claim(
    store: Store,
    key: Key,
    owner: str,
    *,
    fingerprint: str = SAME,
    lease_ms: int = LEASE_MS,
    retention_ms: int = RETENTION_MS,
    takeover: bool = False,
) -> Claimed:
    return store.claim(key, fingerprint, owner=owner, lease_ms=lease_ms, retention_ms=retention_ms, takeover=takeover)


def granted(claimed: Claimed) -> Lease:
    assert isinstance(claimed, Acquired), f"the claim was not granted: {claimed}"
    return claimed.lease


def occupied(claimed: Claimed) -> Record:
    assert isinstance(claimed, Occupied), f"the claim was granted: {claimed}"
    return claimed.record


def complete(store: Store, lease: Lease, result: Result = ANSWER, *, retention_ms: int = RETENTION_MS) -> bool:
    return store.complete(lease, result, retention_ms=retention_ms)


def held(store: Store, key: Key) -> Record:
    """The record that is there."""
    record = store.get(key)
    assert record is not None, f"the store holds nothing for {key}"
    return record


def taken_over(store: Store, clock: ManualClock, key: Key, *, by: str = "successor") -> tuple[Lease, Lease]:
    """Let one owner's lease lapse and another one take over. Returns both leases."""
    zombie = granted(claim(store, key, "zombie"))
    clock.advance(LEASE_MS)
    return zombie, granted(claim(store, key, by, takeover=True))
