"""The plans of every front (a middleware, a decorator, a block).

`acquire` comes before the work, `settle` after it, `abandon` when it is not known whether a claim was granted.

A plan decides and asks; it never acts. A call whose reply was lost is repeated with the same owner. That is safe: the
store gives an owner its own lease again, and keeps the first result of a repeated completion.
"""

from __future__ import annotations

from collections.abc import Callable

from semel.core.backoff import pauses_ms
from semel.core.decisions import (
    STORED,
    Decision,
    Expired,
    Held,
    InFlight,
    Left,
    Mismatch,
    NotStored,
    Released,
    Replay,
    Run,
    Settlement,
    Superseded,
    Undecided,
    Unknown,
    Unreadable,
)
from semel.core.effects import (
    Claim,
    Complete,
    Doubts,
    Effect,
    Emit,
    Pause,
    Plan,
    Read,
    Release,
    Renew,
    T,
    Wait,
    Within,
    do,
)
from semel.core.policy import Policy
from semel.core.records import NOBODY, Acquired, Claimed, Key, Lease, Occupied, Result
from semel.core.reports import acquired, settled
from semel.core.tables import SETTLE, Disposal, Ending, Ruling, ruling, situation
from semel.errors import RecordUnreadable, StoreError, StoreTimeout, StoreUnavailable

READ_BACK_MS = 1_000
"""How long a claim whose reply was lost is repeated before the caller is told to come back."""
ABANDON_MS = 86_400_000
"""How long the background asks the store about a claim whose reply was lost; after that its lease lapses.

A day is longer than most outages. If the claim was granted after all, its outcome is unknown then, for an operator."""


First = Claimed | StoreError | None
"""The reply to a claim that was made before its plan began, or its failure; None when none was made."""


def claim_for(key: Key, fingerprint: str, owner: str, policy: Policy) -> Claim:
    """The claim of a call, for this key, by this owner."""
    return Claim(key, fingerprint, owner, policy.lease_ms, policy.claimed_ms, policy.takeover)


def complete_for(
    lease: Lease, ending: Ending, result: Result | None, policy: Policy, kept_ms: int | None
) -> Complete | None:
    """The completion at the end of the work; None when the key is not to be completed."""
    if SETTLE[ending] is not Disposal.COMPLETE:
        return None
    if result is None:
        raise ValueError(f"work that {ending.value!r} is completed with a result, and none was given")
    return Complete(lease, result, kept_ms or policy.retention_ms, policy.refuse_ms)


def decide(claimed: Claimed, fingerprint: str) -> Decision:
    """Say what a claim's reply means for the caller: the only reader of the table, for every front."""
    if isinstance(claimed, Acquired):
        return Run(claimed.lease)
    record, now_ms = claimed.record, claimed.now_ms
    found = ruling(situation(record, now_ms, takeover=False), same=record.fingerprint == fingerprint)
    if found is Ruling.REPLAY and record.result is not None:
        return Replay(record, record.result)
    if found is Ruling.IN_FLIGHT:
        return InFlight(record, record.lease_until_ms - now_ms)
    if found is Ruling.MISMATCH:
        return Mismatch()
    if found is Ruling.EXPIRED:
        return Expired()
    return Unknown(record)  # also if a store does not grant what it could: the caller has to ask again


def acquire(
    key: Key, fingerprint: str, owner: str, policy: Policy, *, wait_ms: int | None = None, first: First = None
) -> Plan[Decision]:
    """Claim the key, waiting for the first call if the policy (or `wait_ms`) says so.

    `first` is the reply to a claim that the front made itself; without one the plan claims. The decision is reported as
    an event. A driver that stops this plan before its end must `abandon` the claim: it may have been granted.
    """
    claim = claim_for(key, fingerprint, owner, policy)
    if wait_ms is None:
        wait_ms = policy.wait_ms if policy.waits else 0
    until_ms: int | None = None
    due_ms: int | None = None
    while True:
        try:
            repeated = False
            try:
                if isinstance(first, StoreError):
                    raise first
                claimed: Claimed = (yield _by(due_ms, claim)) if first is None else first
            except StoreUnavailable as error:
                due_ms = error.due_ms  # of every further call, until the caller waits for another caller's work
                claimed, repeated = (yield from _read_back(claim, error)), True
            decision = decide(claimed, fingerprint)
            if repeated and isinstance(decision, Run):
                # Its lease may be nearly over, or another owner may have taken it: work begins with a whole lease.
                lease = yield from _ask(_by(due_ms, Renew(decision.lease, policy.lease_ms)))
                if lease is None:
                    continue
                decision = Run(lease)
        except RecordUnreadable as error:
            decision = Unreadable(error)
        except StoreError as error:
            decision = Undecided(error)
        finally:
            first = None
        if isinstance(decision, InFlight) and wait_ms > 0:  # the time that the claims take is part of the wait
            now_ms = yield from do(Pause(0))
            until_ms = now_ms + wait_ms if until_ms is None else until_ms
            wait_ms = min(wait_ms, until_ms - now_ms)
        if not isinstance(decision, InFlight) or wait_ms <= 0:
            yield Emit(acquired(key, decision, owner))
            return decision
        timeout_ms = max(1, min(wait_ms, decision.retry_after_ms))
        try:
            yield from do(Wait(key, decision.record.owner, timeout_ms))
            wait_ms -= 1  # so that the loop ends even if the clock stands still
            due_ms = None
        except StoreError:
            wait_ms = 0  # the store cannot watch the key now: the next claim's reply is the decision


def settle(
    lease: Lease,
    ending: Ending,
    result: Result | None,
    policy: Policy,
    *,
    fingerprint: str,
    kept_ms: int | None = None,
    first: bool | StoreError | None = None,
) -> Plan[Settlement]:
    """End the attempt as the table says. Renewal must have stopped.

    `kept_ms` overrides the policy's retention for one answer; how long its key is refused afterwards stays the same.
    `first` is the reply to a completion that the front made itself.
    """
    complete = complete_for(lease, ending, result, policy, kept_ms)
    settlement: Settlement
    if complete is not None:
        settlement = yield from _store(complete, fingerprint, policy, first)
    elif SETTLE[ending] is Disposal.RELEASE:
        settlement = yield from _give_back(lease, fingerprint, policy)
    else:
        if SETTLE[ending] is Disposal.LAPSE:
            yield from _lapse(lease)
        settlement = Left()
    yield Emit(settled(lease, settlement, result))
    return settlement


def look(key: Key, owner: str, policy: Policy, *, unseen: str = "") -> Plan[Occupied | None]:
    """The record of `key`, with the store's time; None when there is no record. Nothing runs.

    Only a claim tells the store's time. A claim for a held key is never granted; if the key becomes free in the same
    moment, the claim is released. `unseen` is the fingerprint of a request whose record is in its own open transaction:
    a read does not show that record, and a claim does.
    """
    record = yield from _ask(Read(key))
    if record is None and not unseen:
        return None
    if record is not None and record.result is not None and not record.refuse_ms:
        return Occupied(record, 0)
    fingerprint = unseen if record is None else record.fingerprint
    claim = Claim(key, fingerprint, owner, policy.lease_ms, policy.retention_ms, takeover=False)
    claimed = yield from _ask(claim)
    if isinstance(claimed, Occupied):
        return claimed
    yield from _ask(Release(claimed.lease))
    return None


def abandon(lease: Lease) -> Plan[bool]:
    """Release a claim that may have been granted to a caller that is gone. Nothing ran.

    A store that does not know the claim may still learn of it: its message may be under way (in a transaction that
    waits for a standby, on a server that stood still). So a "no" counts only when all of that has ended. Returns
    whether the store answered.
    """
    try:
        doubts = yield from _insist(Doubts(None), budget_ms=ABANDON_MS)
        released = yield from _insist(Release(lease), budget_ms=ABANDON_MS)
        if doubts and not released:
            yield from _outlast(doubts)
            released = yield from _insist(Release(lease), budget_ms=ABANDON_MS)
    except StoreError:
        return False
    if released:
        yield from do(Emit(settled(lease, Released(), None)))
    return True


def _outlast(doubts: frozenset[str]) -> Plan[None]:
    """Pause until none of these is under way any more."""
    for pause_ms in pauses_ms(budget_ms=ABANDON_MS):
        yield from do(Pause(pause_ms))
        doubts = yield from _insist(Doubts(doubts), budget_ms=ABANDON_MS)
        if not doubts:
            return


def _store(complete: Complete, fingerprint: str, policy: Policy, first: bool | StoreError | None) -> Plan[Settlement]:
    try:
        try:
            if isinstance(first, StoreError):
                raise first
            ours: bool = (yield complete) if first is None else first
        except StoreError as error:
            ours = yield from _again(complete, error, _may_change, budget_ms=policy.lease_ms)
        if ours:
            return STORED
    except StoreError as error:
        return STORED if (yield from _has_stored(complete.lease)) else NotStored(error)
    return Superseded((yield from _holds_now(complete.lease.key, fingerprint, policy)))


def _has_stored(lease: Lease) -> Plan[bool]:
    """Whether a completion was stored although every reply to it was lost: one read, compared by owner."""
    try:
        record = yield from do(Read(lease.key))
    except StoreError:
        return False
    return record is not None and record.owner == lease.owner and record.result is not None


def _give_back(lease: Lease, fingerprint: str, policy: Policy) -> Plan[Settlement]:
    try:
        try:
            ours: bool = yield Release(lease)
        except StoreError as error:
            yield from _again(Release(lease), error, _may_change, budget_ms=max(policy.lease_ms, READ_BACK_MS))
            ours = True  # "no" to a repeat may mean that the first try succeeded; the key is not ours either way
    except StoreError as error:
        return NotStored(error)
    if ours:
        return Released()
    now = yield from _holds_now(lease.key, fingerprint, policy)
    return Released() if now == Unknown(None) else Superseded(now)  # nothing was done, and the key has no owner


def _lapse(lease: Lease) -> Plan[None]:
    """End the lease: its executor has stopped, so no repeat has to wait for the lease to run out."""
    try:
        yield from _ask(Renew(lease, 0))
    except StoreError:
        return  # the lease lapses in its own time


def _holds_now(key: Key, fingerprint: str, policy: Policy) -> Plan[Held]:
    try:
        record = yield from _ask(Read(key))
    except RecordUnreadable as error:
        return Unreadable(error)
    except StoreError as error:
        return Undecided(error)
    if record is None:
        return Unknown(None)
    if record.fingerprint != fingerprint:  # the key was freed meanwhile, and now belongs to another request
        return Mismatch()
    if record.result is not None:
        return Replay(record, record.result)
    if not record.in_progress():
        return Expired()
    return Unknown(record) if record.owner == NOBODY else InFlight(record, policy.lease_ms)


def _ask(effect: Effect[T]) -> Plan[T]:
    """Ask while the caller waits: again after a failure, within a short bound, but not again after a time-out."""
    try:
        return (yield from do(effect))
    except StoreUnavailable as error:
        return (yield from _read_back(effect, error))


def _read_back(effect: Effect[T], failure: StoreUnavailable) -> Plan[T]:
    """Ask again within a short bound, and within the deadline of the failed call: its caller has waited since then."""
    due_ms = failure.due_ms
    return _again(_by(due_ms, effect), failure, _may_be_read_back, budget_ms=READ_BACK_MS, due_ms=due_ms)


def _by(due_ms: int | None, effect: Effect[T]) -> Effect[T]:
    """The same effect with a deadline of `due_ms`, if that is known."""
    return effect if due_ms is None or isinstance(effect, Within) else Within(effect, due_ms)


def _insist(effect: Effect[T], *, budget_ms: int) -> Plan[T]:
    """Ask until the store answers or the time is used up, whatever the failure."""
    try:
        return (yield from do(effect))
    except StoreError as error:
        return (yield from _again(effect, error, _may_change, budget_ms=budget_ms))


def _may_be_read_back(failure: StoreError) -> bool:
    """Whether another try may help a caller that waits: not if the store used up the time of a whole call."""
    return isinstance(failure, StoreUnavailable) and not isinstance(failure, StoreTimeout)


def _may_change(failure: StoreError) -> bool:
    """Whether a later try may succeed: a store comes back and an operator mends settings, but not records."""
    return not isinstance(failure, RecordUnreadable)


def _again(
    effect: Effect[T],
    failure: StoreError,
    may_help: Callable[[StoreError], bool],
    *,
    budget_ms: int,
    due_ms: int | None = None,
) -> Plan[T]:
    """Ask again after a `failure` while that `may_help`, until the store answers or the time is used up.

    The time counts from here. The first try is outside of this function, because it nearly always succeeds and every
    request would pay for the extra generator.
    """
    failed_ms: int | None = None
    for pause_ms in pauses_ms(budget_ms=budget_ms):
        if not may_help(failure):
            break
        now_ms = yield from do(Pause(pause_ms, due_ms))
        failed_ms = now_ms - pause_ms if failed_ms is None else failed_ms
        if now_ms - failed_ms > budget_ms or (due_ms is not None and now_ms >= due_ms):
            break
        try:
            return (yield from do(effect))
        except StoreError as error:
            failure = error
    raise failure
