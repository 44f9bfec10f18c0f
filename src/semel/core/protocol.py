"""What a front does, as plans: `acquire` before the work, `settle` after it, `abandon` when a claim's fate is not
known.

A plan decides and asks; it never acts. Every ambiguous call is repeated with the same owner, which is how it is read
back: the store gives an owner its own lease again, and keeps the first result of a repeated completion.
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
from semel.core.tables import SETTLE, Disposal, Ending, Verdict, situation, verdict
from semel.errors import RecordUnreadable, StoreError, StoreTimeout, StoreUnavailable

READ_BACK_MS = 1_000
"""How long a claim whose fate is not known is asked for again before the caller is told to come back."""
ABANDON_MS = 86_400_000
"""How long the store is asked, in the background, about a claim whose fate is not known; after that its lease lapses.

A day is longer than most outages. The record of a claim that was granted after all is unknown then, for an operator."""


First = Claimed | StoreError | None
"""What became of a claim that was asked for before its plan began; None when it was not."""


def claim_for(key: Key, fingerprint: str, owner: str, policy: Policy) -> Claim:
    """What is asked of the store for a call: for this key, by this owner."""
    return Claim(key, fingerprint, owner, policy.lease_ms, policy.claimed_ms, policy.takeover)


def complete_for(
    lease: Lease, ending: Ending, result: Result | None, policy: Policy, kept_ms: int | None
) -> Complete | None:
    """What is asked of the store at the end, if the key is to be completed."""
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
    found = verdict(situation(record, now_ms, takeover=False), same=record.fingerprint == fingerprint)
    if found is Verdict.REPLAY and record.result is not None:
        return Replay(record, record.result)
    if found is Verdict.IN_FLIGHT:
        return InFlight(record, record.lease_until_ms - now_ms)
    if found is Verdict.MISMATCH:
        return Mismatch()
    if found is Verdict.EXPIRED:
        return Expired()
    return Unknown(record)  # also if a store does not grant what it could: the outcome has to be asked for again


def acquire(
    key: Key, fingerprint: str, owner: str, policy: Policy, *, wait_ms: int | None = None, first: First = None
) -> Plan[Decision]:
    """Claim the key, waiting for the first call if the policy (or `wait_ms`) says so.

    `first` is what became of the claim that the front has asked for itself; without one the plan asks. The decision is
    reported as an event. Whoever stops this plan before its end must `abandon` the claim: it may have been granted.
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
                due_ms = error.due_ms  # of all that follows, until the caller waits for another one's work
                claimed, repeated = (yield from _read_back(claim, error)), True
            decision = decide(claimed, fingerprint)
            if repeated and isinstance(decision, Run):
                # Its lease may be nearly over, or in other hands: work begins with a whole one.
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
        if isinstance(decision, InFlight) and wait_ms > 0:  # what the claims take is part of the wait
            now_ms = yield from do(Pause(0))
            until_ms = now_ms + wait_ms if until_ms is None else until_ms
            wait_ms = min(wait_ms, until_ms - now_ms)
        if not isinstance(decision, InFlight) or wait_ms <= 0:
            yield Emit(acquired(key, decision, owner))
            return decision
        timeout_ms = max(1, min(wait_ms, decision.retry_after_ms))
        try:
            yield from do(Wait(key, decision.record.owner, timeout_ms))
            wait_ms -= 1  # so that it ends whatever the clock says
            due_ms = None
        except StoreError:
            wait_ms = 0  # it cannot be watched now: the next claim's reply is the decision


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

    `kept_ms` overrides the policy's retention for one answer; how long its key is refused afterwards stays as it is.
    `first` is what became of the completion that the front has asked for itself.
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
    """What is there for `key`, with the store's time; None when nothing is. Nothing runs.

    Only a claim tells the store's time. One for a key that is held is never granted; should the key be freed in the
    same moment, it is given back. `unseen` is the fingerprint of a request whose record is in its own open transaction:
    reading does not show that record, and a claim does.
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
    """Release a claim that may have been granted to a caller who is gone.

    A store that does not know the claim may come to know it: what carried the claim may still be under way (a
    transaction that waits for a standby, a server that stood still). So a "no" counts once all of that has ended.
    Nothing ran; says whether the store answered.
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
    """Pause until nothing of this is under way any more."""
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
    """Whether a completion whose every reply was lost is there all the same: one look, by owner."""
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
            ours = True  # "no" to a repeat may mean that the first try went through; the key is not ours either way
    except StoreError as error:
        return NotStored(error)
    if ours:
        return Released()
    now = yield from _holds_now(lease.key, fingerprint, policy)
    return Released() if now == Unknown(None) else Superseded(now)  # nothing was done, and nobody has the key


def _lapse(lease: Lease) -> Plan[None]:
    """End the lease: no executor is at work any more, so no repeat has to wait for its end."""
    try:
        yield from _ask(Renew(lease, 0))
    except StoreError:
        return  # it lapses in its own time


def _holds_now(key: Key, fingerprint: str, policy: Policy) -> Plan[Held]:
    try:
        record = yield from _ask(Read(key))
    except RecordUnreadable as error:
        return Unreadable(error)
    except StoreError as error:
        return Undecided(error)
    if record is None:
        return Unknown(None)
    if record.fingerprint != fingerprint:  # the key was freed meanwhile, and another request has it now
        return Mismatch()
    if record.result is not None:
        return Replay(record, record.result)
    if not record.in_progress():
        return Expired()
    return Unknown(record) if record.owner == NOBODY else InFlight(record, policy.lease_ms)


def _ask(effect: Effect[T]) -> Plan[T]:
    """Ask for a caller who waits: after a failure within a short bound, and never for a second time-out."""
    try:
        return (yield from do(effect))
    except StoreUnavailable as error:
        return (yield from _read_back(effect, error))


def _read_back(effect: Effect[T], failure: StoreUnavailable) -> Plan[T]:
    """Ask again within a short bound, and within the time of the call that failed: its caller waits since then."""
    due_ms = failure.due_ms
    return _again(_by(due_ms, effect), failure, _may_be_read_back, budget_ms=READ_BACK_MS, due_ms=due_ms)


def _by(due_ms: int | None, effect: Effect[T]) -> Effect[T]:
    """The same, to be answered by `due_ms` if that is known."""
    return effect if due_ms is None or isinstance(effect, Within) else Within(effect, due_ms)


def _insist(effect: Effect[T], *, budget_ms: int) -> Plan[T]:
    """Ask until the store answers or the time is used up, whatever it fails with."""
    try:
        return (yield from do(effect))
    except StoreError as error:
        return (yield from _again(effect, error, _may_change, budget_ms=budget_ms))


def _may_be_read_back(failure: StoreError) -> bool:
    """Whether a caller who waits gains by another try: not from a store that used up the time of a whole call."""
    return isinstance(failure, StoreUnavailable) and not isinstance(failure, StoreTimeout)


def _may_change(failure: StoreError) -> bool:
    """Whether a later try may go better: a store comes back, and operators mend settings, but not records."""
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

    From now on everything takes of that time. Not around the first try: nearly all calls are answered then, and every
    request pays for what surrounds it.
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
