"""One call under a key, as plans: `begin` before the work, `finish` after it. Threads and tasks share all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, assert_never

from semel.codecs.values import NotKept, Outcome, Raised, Returned, tombstone
from semel.core.decisions import (
    Decision,
    Expired,
    Held,
    InFlight,
    Mismatch,
    Replay,
    Run,
    Settlement,
    Superseded,
    Undecided,
    Unknown,
    Unreadable,
)
from semel.core.effects import Claim, Complete, Effect, Plan, do
from semel.core.protocol import First, acquire, claim_for, complete_for, settle
from semel.core.records import Key, Lease, Record, Result
from semel.core.tables import Ending
from semel.errors import (
    InProgress,
    KeyExpired,
    KeyReused,
    NotExecuted,
    OutcomeUnknown,
    ResultNotKept,
    SemelError,
    StoreError,
    Unstorable,
)  # fmt: skip
from semel.runtime.host import AnyHost
from semel.runtime.options import CallSettings, NotDone, StillUnknown

R = TypeVar("R")
ROUNDS_MAX = 10
"""How often a key that changes while it is being reconciled is claimed again."""


Answer = Returned[Any] | Raised | NotDone | StillUnknown


class Ask(Effect[Answer], frozen=True):
    """Ask the reconciler what became of this record."""

    record: Record


class ResolveSeen(Effect[bool], frozen=True):
    """End the unknown outcome of the record that the reconciler was asked about."""

    seen: Record
    result: Result | None
    retention_ms: int


@dataclass(frozen=True, slots=True)
class Unprotected:
    """The store cannot decide, and the policy says to run without it.

    The claim is not released: if it was stored, the work that runs now makes its outcome unknown. Keys that the work
    derives from its own key stay the same.
    """

    lease: Lease


@dataclass(frozen=True, slots=True)
class Found(Generic[R]):
    """The work was done before: this is how it ended."""

    record: Record
    outcome: Outcome[R]


@dataclass(frozen=True, slots=True)
class EndedCall:
    """How the work ended, and what is settled."""

    ending: Ending
    result: Result | None = None
    unstorable: Unstorable | None = None


Begun = Run | Unprotected | Found[R]


class Call(Generic[R]):
    """One call with its settings. Nothing about it is on an object that calls share."""

    __slots__ = ("_host", "fingerprint", "key", "owner", "policy", "settings")

    def __init__(self, key: Key, fingerprint: str, owner: str, settings: CallSettings[R], host: AnyHost) -> None:
        self._host = host
        self.key = key
        self.fingerprint = fingerprint
        self.owner = owner
        self.settings = settings
        self.policy = settings.policy

    # Before the work

    @property
    def first_claim(self) -> Claim:
        return claim_for(self.key, self.fingerprint, self.owner, self.policy)

    def has_to_wait(self, decision: Decision) -> bool:
        """For another executor, or for the reconciler's answer."""
        return (isinstance(decision, InFlight) and self.policy.waits) or self._may_be_reconciled(decision)

    def begin(self, first: First = None) -> Plan[Begun[R]]:
        """The lease to work under, or how the work ended before. Every other decision is raised."""
        for _ in range(ROUNDS_MAX):
            decision = yield from self._acquire(first)
            first = None
            if not self._may_be_reconciled(decision):
                return self.begin_with(decision)
            assert isinstance(decision, Unknown)
            assert decision.record is not None
            found = yield from self._reconcile(decision.record)
            if found is not None:
                return found
        raise InProgress(f"{_named(self.key)} changes hands faster than it can be reconciled: ask again later")

    def _may_be_reconciled(self, decision: Decision) -> bool:
        is_known = isinstance(decision, Unknown) and decision.record is not None
        return is_known and self.settings.reconcile is not None

    def begin_with(self, decision: Decision) -> Begun[R]:
        """What a decision means for the call. A refusal is raised."""
        match decision:
            case Run():
                return decision
            case Replay(record, result):
                return Found(record, self.settings.values.decode(result))
            case Undecided() if self.policy.on_store_error == "open":
                return Unprotected(self._unsure_lease())
            case Undecided():
                self.abandon()
                raise refusal(decision, self.key)
            case _:
                raise refusal(decision, self.key)

    def _acquire(self, first: First) -> Plan[Decision]:
        waiters = self._host.waiters
        waiting = self.policy.waits and waiters.enter()
        try:
            return (
                yield from acquire(
                    self.key,
                    self.fingerprint,
                    self.owner,
                    self.policy,
                    wait_ms=self.policy.wait_ms if waiting else 0,
                    first=first,
                )
            )
        except BaseException:
            self.abandon()
            raise
        finally:
            if waiting:
                waiters.leave()

    def abandon(self) -> None:
        """Release the claim in the background: it may have been granted, and nothing has begun."""
        self._host.abandon_later(self._unsure_lease())

    def _unsure_lease(self) -> Lease:
        return Lease(self.key, self.owner, 1, 0)

    def _reconcile(self, record: Record) -> Plan[Found[R] | None]:
        """Ask the reconciler about an unknown outcome. None when the key must be claimed again."""
        answer = yield from do(Ask(record))
        if isinstance(answer, StillUnknown):
            raise OutcomeUnknown(f"how {_named(self.key)} ended is unknown, and the reconciler cannot tell yet")
        ended = (
            EndedCall(Ending.NOTHING_DONE)
            if isinstance(answer, NotDone)
            else self._keep_outcome(answer, Ending.SUCCEEDED)
        )
        if ended.unstorable is not None:
            raise ended.unstorable
        try:
            resolved = yield from do(ResolveSeen(record, ended.result, self.policy.retention_ms))
        except StoreError:
            return None  # the store may have resolved it: the next claim tells
        return Found(record, answer) if resolved and not isinstance(answer, NotDone) else None

    # After the work

    def returned(self, value: R, *, nothing_done: bool) -> EndedCall:
        if nothing_done:
            return EndedCall(Ending.NOTHING_DONE)
        return self._keep_outcome(Returned(value), Ending.SUCCEEDED)

    def raised(self, error: BaseException, *, nothing_done: bool) -> EndedCall:
        """A final error is an answer. After any other error the outcome is unknown: the work may have taken effect."""
        if not isinstance(error, Exception):  # cancelled or killed: a part of the work may go on
            return EndedCall(Ending.INTERRUPTED)
        if nothing_done or isinstance(error, (NotExecuted, *self.policy.release_exceptions)):
            return EndedCall(Ending.NOTHING_DONE)
        if isinstance(error, self.settings.values.errors):
            return self._keep_outcome(Raised(error), Ending.FAILED)
        return EndedCall(Ending.UNCERTAIN)

    def _keep_outcome(self, outcome: Returned[R] | Raised, ending: Ending) -> EndedCall:
        """A result that cannot be kept leaves a tombstone: the effect happened, and stays protected."""
        ok = isinstance(outcome, Returned)
        try:
            result = self.settings.values.encode(outcome)
        except Unstorable as error:
            return EndedCall(Ending.TOO_LARGE, tombstone(f"it cannot be stored: {error}", ok=ok), unstorable=error)
        size, size_max = len(result.payload), self.policy.result_max
        if size > size_max:
            reason = f"it has {size} bytes, and Policy.result_max is {size_max}"
            return EndedCall(Ending.TOO_LARGE, tombstone(reason, ok=ok))
        return EndedCall(ending, result)

    def completion(self, lease: Lease, ended: EndedCall) -> Complete | None:
        return complete_for(lease, ended.ending, ended.result, self.policy, None)

    def settle(self, lease: Lease, ended: EndedCall, first: bool | StoreError | None = None) -> Plan[Settlement]:
        """End the attempt. Renewal must have stopped."""
        return settle(lease, ended.ending, ended.result, self.policy, fingerprint=self.fingerprint, first=first)

    def held(self, settlement: Settlement) -> Found[R] | None:
        """The outcome of another attempt that took the key over; None when this attempt ended it."""
        match settlement:
            case Superseded(Replay(record, result)):
                return Found(record, self.settings.values.decode(result))
            case Superseded(decision):
                raise refusal(decision, self.key)
            case _:
                return None


def refusal(decision: Held, key: Key) -> SemelError:
    """The error to raise when nothing may run and nothing is replayed."""
    match decision:
        case InFlight(_, retry_after_ms):
            retry_after = max(1, retry_after_ms) / 1000
            return InProgress(f"{_named(key)} is still running: ask again in {retry_after:g} s", retry_after)
        case Unknown():
            return OutcomeUnknown(
                f"whether {_named(key)} took effect is unknown: its executor was lost or failed. It is not run "
                "again until a reconcile= function or an operator resolves it."
            )
        case Mismatch():
            return KeyReused(f"{_named(key)} was used with other arguments. Nothing was run.")
        case Expired():
            return KeyExpired(f"{_named(key)} was used, and its result is past retention. Nothing was run.")
        case Unreadable(error) | Undecided(error):
            return error
        case Replay():
            raise ValueError("a stored result is returned, not refused")
        case _:
            assert_never(decision)


def answered(answer: object) -> Answer:
    """The reconciler's answer; a value that is neither `NotDone` nor `StillUnknown` is the result."""
    if isinstance(answer, NotDone) or answer is NotDone:
        return NotDone()
    if isinstance(answer, StillUnknown) or answer is StillUnknown:
        return StillUnknown()
    return Returned(answer)


def value_of(outcome: Outcome[R], key: Key) -> R:
    """What the call of this key returned. The error that it raised is raised again."""
    match outcome:
        case Returned(value):
            return value
        case Raised(error):
            raise error
        case NotKept():
            raise ResultNotKept(not_kept(key, outcome))
        case _:
            assert_never(outcome)


def not_kept(key: Key, outcome: NotKept) -> str:
    return f"{_named(key)} took effect, but what it returned was not kept: {outcome.reason}"


def _named(key: Key) -> str:
    tenant = f" of tenant {key.tenant!r}" if key.tenant else ""
    return f"the operation {key.name!r} of {key.scope}{tenant}"
