"""What a store does, as pure functions: (record, call, now) -> (record, reply).

This is the specification. The memory store is this module plus a dict and a lock; every other store must be
observationally equal to it, which the contract suite checks. A record of None means that the store holds nothing for
the key.
"""

from __future__ import annotations

from msgspec.structs import replace

from semel.core.effects import Claim, Complete, Release, Remove, Renew, Resolve
from semel.core.records import NOBODY, Acquired, Claimed, Lease, Occupied, Record, Result, State
from semel.core.tables import Ruling, ruling, situation


def claim(old: Record | None, call: Claim, now_ms: int) -> tuple[Record, Claimed]:
    """Make the caller the executor, or tell it what the store holds already."""
    if (
        old is not None
        and _holds(old, call.owner)
        and old.fingerprint == call.fingerprint
        and not old.past_retention(now_ms)
    ):
        return old, Acquired(old.lease)  # a lost reply must not make an owner conflict with itself
    same = old is not None and old.fingerprint == call.fingerprint
    found = Ruling.GRANT if old is None else ruling(situation(old, now_ms, takeover=call.takeover), same=same)
    lease_until_ms, expires_ms = now_ms + call.lease_ms, now_ms + call.retention_ms
    if old is None or found is Ruling.GRANT:
        new = Record(call.key, call.fingerprint, State.IN_PROGRESS, call.owner, 1, now_ms, lease_until_ms, expires_ms)
    elif found is Ruling.TAKE_OVER:
        new = replace(
            old, owner=call.owner, attempt=old.attempt + 1, lease_until_ms=lease_until_ms, expires_ms=expires_ms
        )
    else:
        return old, Occupied(old, now_ms)
    return new, Acquired(Lease(new.key, new.owner, new.attempt, new.lease_until_ms))


def read(old: Record | None, now_ms: int) -> Record | None:
    """The record that still counts for the key. A record past retention is gone, whether or not it was purged."""
    return None if old is None or old.past_retention(now_ms) else old


def renew(old: Record | None, call: Renew, now_ms: int) -> tuple[Record | None, Lease | None]:
    """Extend the lease.

    A lapsed lease still belongs to its owner: ownership ends when another executor takes over, not by time.
    """
    if old is None or not _holds(old, call.lease.owner):
        return old, None
    new = replace(old, lease_until_ms=now_ms + call.lease_ms)
    return new, new.lease


def complete(old: Record | None, call: Complete, now_ms: int) -> tuple[Record | None, bool]:
    """Store the result and end the lease. The first result is kept, and a repeat by the same owner is told so."""
    if old is None or old.owner != call.lease.owner:
        return old, False
    if not old.in_progress():
        return old, True
    return _finished(old, call.result, call.retention_ms, now_ms, call.refuse_ms), True


def release(old: Record | None, call: Release, now_ms: int) -> tuple[Record | None, bool]:
    """Give the key back because nothing was done.

    This undoes only the current attempt. After a take-over the outcome of the earlier attempt is still unknown. So the
    record stays, lapsed and without an owner, with its fingerprint and with the attempt number that the next one must
    exceed.
    """
    if old is None or not _holds(old, call.lease.owner):
        return old, False
    if old.attempt == 1:
        return None, True
    return replace(old, owner=NOBODY, lease_until_ms=now_ms), True


def resolve(old: Record | None, call: Resolve, now_ms: int) -> tuple[Record | None, bool]:
    """End an unknown outcome from outside: with the result that was found out, or with None because nothing was done.

    Acts only on a lapsed attempt, and only on the one that the caller has read. Its late owner can no longer complete.
    """
    if old is None or not old.lapsed(now_ms) or old.attempt != call.attempt or old.owner != call.owner:
        return old, False
    if call.result is None:
        return None, True
    return replace(_finished(old, call.result, call.retention_ms, now_ms), owner=NOBODY), True


def remove(old: Record | None, call: Remove, now_ms: int) -> tuple[Record | None, bool]:
    """Forget a finished or lapsed record, and only the one that the caller has read. A repeat is then a first call.

    With `expire` only the retention of a finished record ends now.
    """
    seen = (call.owner, call.attempt, call.created_ms, call.completed_ms)
    if old is None or seen != (old.owner, old.attempt, old.created_ms, old.completed_ms):
        return old, False
    if call.expire:
        return (old, False) if old.in_progress() else (replace(old, expires_ms=min(old.expires_ms, now_ms)), True)
    return (None, True) if now_ms >= old.lease_until_ms else (old, False)


def _holds(record: Record, owner: str) -> bool:
    return record.owner == owner and record.in_progress()


def purge(old: Record, now_ms: int) -> tuple[Record | None, bool]:
    """Forget what is past retention: the record, or only the result of a key that is refused from now on."""
    if old.past_retention(now_ms):
        return None, True
    if old.result is None or old.answers(now_ms):
        return old, False
    return replace(old, result=None, expires_ms=old.expires_ms + old.refuse_ms, refuse_ms=0), True


def _finished(record: Record, result: Result, retention_ms: int, now_ms: int, refuse_ms: int = 0) -> Record:
    return Record(
        key=record.key,
        fingerprint=record.fingerprint,
        state=result.state,
        owner=record.owner,
        attempt=record.attempt,
        created_ms=record.created_ms,
        lease_until_ms=now_ms,
        expires_ms=now_ms + retention_ms,
        completed_ms=now_ms,
        result=result,
        refuse_ms=refuse_ms,
    )
