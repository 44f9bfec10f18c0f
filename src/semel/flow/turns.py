"""One step or undo of a flow, as a plan: it is claimed, called and recorded, once.

A step is claimed under an owner that begins with the attempt number of the flow. So a later attempt can free what an
earlier one left behind, and an earlier one that comes back finds that it has been overtaken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, assert_never

from semel.codecs.values import NotKept, Outcome, Raised, Returned
from semel.core.decisions import (
    Decision,
    Expired,
    InFlight,
    Mismatch,
    NotStored,
    Replay,
    Run,
    Superseded,
    Undecided,
    Unknown,
    Unreadable,
)
from semel.core.effects import Claim, Effect, Pause, Plan, Renew, do
from semel.core.protocol import acquire, decide, settle  # fmt: skip
from semel.core.records import Lease, Occupied, Record, Result
from semel.core.tables import Ending
from semel.errors import InProgress, NotExecuted, OutcomeUnknown, ResultNotKept, StoreError
from semel.flow.definition import Definition, Life
from semel.flow.steps import In, StepTurn
from semel.runtime.calls import ResolveSeen, refusal
from semel.runtime.host import AnyHost

Found = Returned[Any] | Raised | Replay | InFlight | Unknown | Mismatch | Expired
ROUNDS_MAX = 10
"""How often a record that changes hands in the same moment is looked at again."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The function raised an error that is not final. Whether it did anything is unknown."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Fenced:
    """The flow's record, read in the transaction of the step, is another attempt's: the transaction was rolled back."""


Ended = Returned[Any] | Raised | Failed


class Invoke(Effect[Ended], Generic[In], frozen=True):
    """Call the function of a step or an undo."""

    turn: StepTurn[In]
    lease: Lease
    input: In
    results: Mapping[str, object]


class Transact(Effect["Ended | Occupied | Fenced"], Generic[In], frozen=True):
    """Claim, call the function, complete, and look at the flow's owner, in one transaction. `Returned` is committed."""

    invoke: Invoke[In]
    claim: Claim


class Overtaken(Exception):
    """Another attempt has the flow."""


class FlowAttempt(Generic[In]):
    """The right to take the steps of a flow, as long as `lease` is the flow's."""

    def __init__(self, definition: Definition[In, Any], life: Life, lease: Lease, input: In, front: AnyHost) -> None:
        self._definition = definition
        self._life = life
        self._lease = lease
        self._input = input
        self._front = front
        self._policy = definition.step_policy
        self._owner = f"{lease.attempt}.{lease.owner}"
        self.results: dict[str, object] = {}

    def once(self, turn: StepTurn[In]) -> Plan[Returned[Any] | Raised]:
        """Take the turn once, or return how it ended. Everything else is raised."""
        if (yield from do(Renew(self._lease, self._policy.lease_ms))) is None:
            raise Overtaken
        for _ in range(ROUNDS_MAX):
            found = yield from self._try(turn)
            match found:
                case Returned() | Raised():
                    return found
                case Replay(_, result):
                    return self._kept(turn, result)
                case InFlight(record, retry_after_ms):
                    self._check_earlier(record)
                    yield from do(Pause(retry_after_ms))  # its executor does not renew it, so it ends by then
                case Unknown(record) if record is not None:
                    self._check_earlier(record)
                    if turn.step.kind == "unsafe":
                        raise OutcomeUnknown(self._interrupted(turn))
                    yield from do(ResolveSeen(record, None, self._policy.retention_ms))
                case _:
                    raise refusal(found, self._life.at(turn.place))
        raise InProgress(f"{turn.place} of the flow {self._life.key.name!r} changes hands too often: ask again later")

    def _try(self, turn: StepTurn[In]) -> Plan[Found]:
        invoke = Invoke(turn, self._lease, self._input, dict(self.results))
        if turn.step.kind == "tx":
            return (yield from self._transact(invoke))
        decision = yield from self._claim(turn)
        if not isinstance(decision, Run):
            return decision
        try:
            return (yield from self._record(turn, decision.lease, (yield from do(invoke))))
        except Exception:  # this attempt has ended, so later ones need not wait for its lease
            with contextlib.suppress(StoreError):
                yield from do(Renew(decision.lease, 0))
            raise

    def _transact(self, invoke: Invoke[In]) -> Plan[Found]:
        turn, policy = invoke.turn, self._policy
        key, printed = self._life.at(turn.place), self._life.printed
        claim = Claim(key, printed, self._owner, policy.lease_ms, policy.retention_ms, takeover=False)
        ended = yield from do(Transact(invoke, claim))
        match ended:
            case Returned():
                return ended
            case Occupied():
                return _refuse_undecided(decide(ended, printed))
            case Fenced():
                raise Overtaken
            case Failed(error):
                raise error
            case Raised():  # its writes are rolled back; the failure is recorded unless another attempt was faster
                decision = yield from self._claim(turn)
                if not isinstance(decision, Run):
                    return decision
                return (yield from self._record(turn, decision.lease, ended))
            case _:
                assert_never(ended)

    def _claim(self, turn: StepTurn[In]) -> Plan[Run | Replay | InFlight | Unknown | Mismatch | Expired]:
        key = self._life.at(turn.place)
        decision = yield from acquire(key, self._life.printed, self._owner, self._policy, wait_ms=0)
        if isinstance(decision, Undecided):
            self._front.abandon_later(Lease(key, self._owner, 1, 0))
        return decision if isinstance(decision, Run) else _refuse_undecided(decision)

    def _record(self, turn: StepTurn[In], lease: Lease, ended: Ended) -> Plan[Returned[Any] | Raised]:
        if isinstance(ended, Failed):
            if isinstance(ended.error, (NotExecuted, *self._definition.settings.policy.release_exceptions)):
                yield from self._settle(lease, Ending.NOTHING_DONE, None)
            raise ended.error
        ending = Ending.SUCCEEDED if isinstance(ended, Returned) else Ending.FAILED
        yield from self._settle(lease, ending, self._definition.encode(turn, ended))
        return ended

    def _settle(self, lease: Lease, ending: Ending, result: Result | None) -> Plan[None]:
        settlement = yield from settle(lease, ending, result, self._policy, fingerprint=self._life.printed)
        if isinstance(settlement, Superseded):
            raise Overtaken
        if isinstance(settlement, NotStored):
            raise settlement.error

    def _kept(self, turn: StepTurn[In], result: Result) -> Returned[Any] | Raised:
        outcome: Outcome[Any] = self._definition.values(turn).decode(result)
        if isinstance(outcome, NotKept):
            raise ResultNotKept(f"what {turn.place} of {self._life.key.name!r} returned was not kept: {outcome.reason}")
        return outcome

    def _check_earlier(self, record: Record) -> None:
        """Only the claim of an earlier attempt may be freed. An operator's record has no attempt number."""
        number = record.owner.partition(".")[0]
        if number.isdigit() and int(number) >= self._lease.attempt:
            raise Overtaken

    def _interrupted(self, turn: StepTurn[In]) -> str:
        undo = ", undo=True" if turn.undo else ""
        return (
            f"{turn.place} of the flow {self._life.key.name!r} of {self._life.key.scope} was cut off, and it is "
            "unknown whether it took effect. It is not run again: find out, then say it with "
            f"resolve({self._life.key.name!r}, {turn.step.name!r}, NotDone(){undo}), or with the result it had."
        )


def _refuse_undecided(decision: Decision) -> Replay | InFlight | Unknown | Mismatch | Expired:
    if isinstance(decision, (Undecided, Unreadable)):
        raise decision.error
    assert not isinstance(decision, Run)
    return decision
