"""One run of a flow, as a plan: forward from step to step, or back through the undos.

Nothing about a flow is kept but records, each of which is written once: the plan (the input, and which steps there
are), then one for every step and every undo. A step that is recorded as failed makes the flow go back, in this attempt
and in every later one. The flow's own record holds the lease, and in the end the result.
"""

from __future__ import annotations

import secrets
from typing import Any, Generic

from semel.codecs.values import Outcome, Raised, Returned
from semel.core.decisions import Mismatch, NotStored, Replay, Run, Undecided, Unknown
from semel.core.effects import Effect, Plan, Read, do
from semel.core.protocol import acquire, decide, look, settle
from semel.core.records import Key, Lease, Record
from semel.core.tables import Ending
from semel.errors import InProgress, KeyReused, Misuse, OutcomeUnknown
from semel.flow.definition import INSTANCE_BYTES, Definition, Life, R
from semel.flow.steps import In, StepTurn
from semel.flow.turns import ROUNDS_MAX, FlowAttempt, Overtaken
from semel.runtime.calls import Call, EndedCall, Found, ResolveSeen, refusal
from semel.runtime.host import AnyHost
from semel.runtime.options import NotDone

PLAN = "plan"


class Keep(Effect[None], frozen=True):
    """Renew the flow's lease from now on."""

    lease: Lease


class LetGo(Effect[None], frozen=True):
    """Renew it no longer."""


class Course(Generic[In, R]):
    """One attempt at the flow of `key`."""

    def __init__(self, definition: Definition[In, R], key: Key, front: AnyHost) -> None:
        self._definition = definition
        self._key = key
        self._front = front
        self._owner = secrets.token_urlsafe(16)

    def begin(self, input: In) -> Plan[Outcome[R]]:
        """Run the flow, resume it, or return how it ended."""
        printed = self._definition.printed(input)
        for _ in range(ROUNDS_MAX):
            record = yield from do(Read(self._key))
            if record is None:
                life = Life(self._key, f"{printed}.{secrets.token_urlsafe(INSTANCE_BYTES)}")
                yield from self._write_plan(life, input)
            else:
                life = Life(self._key, record.fingerprint)
                if life.printed != printed:
                    raise refusal(Mismatch(), self._key)
            try:
                return (yield from self.resume(life))
            except KeyReused:  # in the same moment another caller began it, with an instance of its own
                continue
        raise InProgress(f"the flow {self._key.name!r} changes hands faster than it can be claimed: ask again later")

    def resume(self, life: Life) -> Plan[Outcome[R]]:
        """Claim the flow and walk it to its end, or leave it so that another caller can resume it at once."""
        call = Call[R](self._key, life.fingerprint, self._owner, self._definition.settings, self._front)
        begun = yield from call.begin()
        if isinstance(begun, Found):
            return begun.outcome
        lease = begun.lease
        yield from do(Keep(lease))
        try:
            outcome = yield from self._walk(life, lease)
        except Overtaken:
            yield from do(LetGo())
            return (yield from self._held_now(life))
        except Exception:
            yield from do(LetGo())
            yield from call.settle(lease, EndedCall(Ending.UNCERTAIN))
            raise
        yield from do(LetGo())
        if isinstance(outcome, Returned):
            ended = call.returned(outcome.value, nothing_done=False)
        else:
            ended = call.raised(outcome.error, nothing_done=False)
        found = call.held((yield from call.settle(lease, ended)))
        return outcome if found is None else found.outcome

    def _walk(self, life: Life, lease: Lease) -> Plan[Returned[R] | Raised]:
        attempt = FlowAttempt(self._definition, life, lease, (yield from self._read_plan(life)), self._front)
        outcome: Returned[Any] | Raised = Returned(None)
        for number, step in enumerate(self._definition.steps, 1):
            outcome = yield from attempt.once(StepTurn(step))
            if isinstance(outcome, Raised):
                yield from self._go_back(attempt, number)
                break
            attempt.results[step.name] = outcome.value
        return outcome

    def _go_back(self, attempt: FlowAttempt[In], begun: int) -> Plan[None]:
        """Undo the first `begun` steps, the last one first.

        The last one failed, and may have done something before that. In a transaction this was rolled back.
        """
        for number in range(begun, 0, -1):
            step = self._definition.steps[number - 1]
            if step.undo is not None and not (number == begun and step.kind == "tx"):
                yield from attempt.once(StepTurn(step, undo=True))

    def _held_now(self, life: Life) -> Plan[Outcome[R]]:
        """An overtaken attempt has no answer of its own: return what the store holds."""
        settings = self._definition.settings
        seen = yield from look(self._key, self._owner, settings.policy)
        decision = Unknown(None) if seen is None else decide(seen, life.fingerprint)
        if isinstance(decision, Replay):
            return settings.values.decode(decision.result)
        assert not isinstance(decision, Run)
        raise refusal(decision, self._key)

    # The plan

    def _write_plan(self, life: Life, input: In) -> Plan[None]:
        """Write the plan before the flow is claimed: recovery needs it to finish an abandoned flow."""
        key, policy = life.at(PLAN), self._definition.step_policy
        result = self._definition.plans.encode(Returned((input, self._definition.shape)))
        decision = yield from acquire(key, life.printed, self._owner, policy, wait_ms=0)
        if isinstance(decision, Undecided):
            raise decision.error
        assert isinstance(decision, Run), "this attempt has just made the instance up"
        settled = yield from settle(decision.lease, Ending.SUCCEEDED, result, policy, fingerprint=life.printed)
        if isinstance(settled, NotStored):
            raise settled.error

    def _read_plan(self, life: Life) -> Plan[In]:
        record = yield from do(Read(life.at(PLAN)))
        if record is None or record.result is None:
            raise OutcomeUnknown(
                f"the flow {self._key.name!r} of {self._key.scope} was begun longer ago than its retention, and its "
                "steps are not remembered any more, so it cannot be finished. Its key is free at the end of "
                "unknown_retention, or when an operator releases it."
            )
        kept = self._definition.plans.decode(record.result)
        assert isinstance(kept, Returned)
        input, shape = kept.value
        if shape != self._definition.shape:
            raise Misuse(
                f"the flow {self._key.name!r} was begun with the steps {_list(shape)}, and {self._key.scope} has "
                f"{_list(self._definition.shape)} now. Finish it with the code that began it, and give the changed "
                "flow another name."
            )
        return input

    # From outside

    def resolve(self, turn: StepTurn[In], answer: object) -> Plan[bool]:
        """Say how an interrupted step ended. False when it is not interrupted (any more)."""
        record = yield from self._find_abandoned()
        life = Life(self._key, record.fingerprint)
        seen = yield from do(Read(life.at(turn.place)))
        if seen is None or not seen.in_progress():
            return False
        policy = self._definition.step_policy
        result = None
        if not (isinstance(answer, NotDone) or answer is NotDone):
            errors = self._definition.settings.values.errors
            ended = Raised(answer) if isinstance(answer, errors) else Returned(answer)
            result = self._definition.encode(turn, ended)
        return (yield from do(ResolveSeen(seen, result, policy.retention_ms)))

    def _find_abandoned(self) -> Plan[Record]:
        """The flow's record, if no executor holds its lease."""
        seen = yield from look(self._key, self._owner, self._definition.settings.policy)
        if seen is None:
            raise LookupError(f"there is no flow {self._key.name!r} of {self._key.scope}")
        if seen.record.in_progress() and not seen.record.lapsed(seen.now_ms):
            raise InProgress(
                f"the flow {self._key.name!r} is running: resolve it when it has ended",
                max(1, seen.record.lease_until_ms - seen.now_ms) / 1000,
            )
        return seen.record


def _list(shape: tuple[tuple[str, str, bool], ...]) -> str:
    return ", ".join(f"{name} ({kind}{', undo' if undo else ''})" for name, kind, undo in shape)
