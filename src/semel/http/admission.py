"""From a keyed request to its lease, or to the answer that it gets instead: quota, claim and waiting, as plans.

A front (the middleware of a framework) makes one `Keyed` for each request with a key and drives its plans, with or
without `await`. It reads requests, runs the application and sends answers. It decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from semel.codecs.responses import AnswerNotKept
from semel.core.decisions import Decision, InFlight, NotStored, Replay, Run, Settlement, Undecided
from semel.core.effects import Claim, Complete, Emit, Plan, Read, do
from semel.core.events import Event, EventKind
from semel.core.http import REPEAT_LATER, Response
from semel.core.policy import Policy
from semel.core.prefer import respond_async
from semel.core.protocol import First, acquire, complete_for, settle
from semel.core.records import Lease
from semel.core.tables import Ending
from semel.errors import StoreError
from semel.http.allowance import Allowance, Place
from semel.http.answers import Answers, Ended
from semel.http.gate import Gate
from semel.http.monitors import Monitored
from semel.runtime.calls import Unprotected
from semel.runtime.host import AnyHost
from semel.runtime.operation import Operation

logger = logging.getLogger("semel")


class Transaction(Protocol):
    """What these plans need of a request's own transaction under exactly-once."""

    @property
    def wait_ms(self) -> int:
        """How long a repeat waits for the first request, unless the policy says so."""
        ...

    def gave_up(self, error: BaseException | None) -> str:
        """Why the database has rolled the transaction back by itself, if it has: then nothing was done."""
        ...


class Answered(Struct, frozen=True):
    """Nothing runs: this is the answer."""

    response: Response
    replayed: bool = False


Begun = Run | Unprotected | Answered


class Keyed:
    """One request with a key."""

    __slots__ = (
        "_allowance",
        "_asked_at",
        "_claim",
        "_gate",
        "_host",
        "_transaction",
        "accept_s",
        "answers",
        "first_claim",
        "policy",
    )

    def __init__(
        self,
        host: AnyHost,
        gate: Gate,
        policy: Policy,
        answers: Answers,
        claim: Claim,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        asked_at: str = "",
        transaction: Transaction | None = None,
    ) -> None:
        self._host = host
        self._gate = gate
        self.policy = policy
        self.answers = answers.styled(policy.errors)
        self._claim = claim
        self._allowance = None if policy.quota is None else Allowance(policy, claim.key)
        self.first_claim = claim if policy.quota is None else None
        """The first call on the store. None under a quota, which counts the key before."""
        self.accept_s = respond_async(headers) if gate.secret is not None else None
        self._asked_at = asked_at
        self._transaction = transaction

    # Before the work

    def has_to_wait(self, decision: Decision) -> bool:
        return isinstance(decision, InFlight) and self._wait_ms() > 0

    def begin(self, first: First = None) -> Plan[Begun]:
        """Claim the key, or find out what its caller gets instead. `first` is the reply to the front's own claim."""
        claim, allowance = self._claim, self._allowance
        if allowance is not None and (refused := (yield from self._over_quota(allowance))) is not None:
            return Answered(refused)
        wait_ms = self._wait_ms()
        waiting = wait_ms > 0 and self._host.waiters.enter()
        try:
            plan = acquire(
                claim.key,
                claim.fingerprint,
                claim.owner,
                self.policy,
                wait_ms=wait_ms if waiting else 0,
                first=first,
            )
            decision = yield from (plan if allowance is None else allowance.watch(plan))
            if allowance is not None and isinstance(decision, Run) and decision.lease.attempt == 1:
                refused = yield from self._count_late(allowance, decision.lease)
                if refused is not None:
                    return Answered(refused)
        except BaseException:
            self.abandon()
            raise
        finally:
            if waiting:
                self._host.waiters.leave()
        return self.begin_with(decision)

    def begin_with(self, decision: Decision) -> Begun:
        """What a decision means for the caller."""
        match decision:
            case Run():
                return decision
            case Replay():
                return Answered(self.answers.replay(decision.result), replayed=True)
            case Undecided() if self.policy.on_store_error == "open":
                return Unprotected(unsure(self._claim))
            case Undecided():
                self.abandon()
            case InFlight() if self.policy.in_flight == "accept" or self.accept_s is not None:
                return Answered(self.accepted())
            case _:
                pass
        return Answered(self.answers.answer(decision))

    def accepted(self) -> Response:
        """202, with a link where the caller can ask how it ended."""
        monitored = Monitored(self._claim.key, self._claim.fingerprint, self._asked_at)
        return self._gate.monitors.accepted(monitored, self.answers, preferred=self.accept_s is not None)

    # After the work

    def completion(self, lease: Lease, ended: Ended) -> Complete | None:
        """The completion, if the answer is to be stored."""
        return complete_for(lease, self._ending(ended), ended.result, self.policy, ended.kept_ms)

    def settle(self, lease: Lease, ended: Ended, first: bool | StoreError | None = None) -> Plan[Settlement]:
        """End the attempt. Renewal must have stopped. `first` is the reply to the front's own completion."""
        plan = settle(
            lease,
            self._ending(ended),
            ended.result,
            self.policy,
            fingerprint=self._claim.fingerprint,
            kept_ms=ended.kept_ms,
            first=first,
        )
        return plan if self._allowance is None else self._allowance.settle(plan)

    def _ending(self, ended: Ended) -> Ending:
        if self._transaction is not None and ended.ending in (Ending.INTERRUPTED, Ending.UNCERTAIN):
            return Ending.NOTHING_DONE  # its transaction is rolled back, so the outcome is known
        return ended.ending

    def abandon(self, lease: Lease | None = None) -> None:
        """Release a claim of which nothing ran, in the background. Without a `lease` it may not have been granted."""
        if self._transaction is None:  # else the request rolls its own transaction back
            self._host.abandon_later(unsure(self._claim) if lease is None else lease)
        if self._allowance is not None:
            self._allowance.give_back_later()

    def answered(self, response: Response, operation: Operation, *, too_large: AnswerNotKept | None = None) -> Ended:
        """The application answered, or its framework answered for an exception and reported it.

        A body that is too large to keep is not in `response`; `too_large` then says what is known of the work.
        """
        error, failed = operation.reported, response.status >= 500
        if error is not None and failed and not operation.nothing_was_done:
            if isinstance(error, tuple(self.policy.release_exceptions)):
                return Ended(Ending.NOTHING_DONE, None, response)
            return self.raised(error, response, too_large=too_large)
        invalid = operation.refused_invalid and self.policy.release_invalid
        undone = operation.nothing_was_done or invalid or (failed and self._why_rolled_back(error) != "")
        if too_large is not None:
            return self.answers.too_large(response, self.policy, nothing_done=undone, known=too_large)
        return self.answers.answered(response, self.policy, nothing_done=undone)

    def raised(
        self,
        error: BaseException | None = None,
        response: Response | None = None,
        *,
        too_large: AnswerNotKept | None = None,
    ) -> Ended:
        """The work raised. If the database had rolled its transaction back, nothing was done, and a repeat runs.

        `response` is the application's own answer for the exception, if there is one: the caller gets that.
        `too_large` is given if that answer cannot, or must not, be kept.
        """
        if error is not None and (declared := self.answers.declared(error)) is not None:
            return declared
        if why := self._why_rolled_back(error):
            return self.answers.not_executed(f"Nothing was done: {why}. {REPEAT_LATER}")
        if response is None:
            return self.answers.raised()
        if too_large is not None:
            return self.answers.too_large(response, self.policy, nothing_done=False, known=too_large, raised=True)
        return self.answers.answered(response, self.policy, nothing_done=False, raised=True)

    def _why_rolled_back(self, error: BaseException | None) -> str:
        return "" if self._transaction is None else self._transaction.gave_up(error)

    def _wait_ms(self) -> int:
        """How long a repeat waits for the first request."""
        if self.policy.waits:
            return self.policy.wait_ms
        if self.accept_s is not None or self.policy.in_flight == "accept" or self._transaction is None:
            return (self.accept_s or 0) * 1000
        return self._transaction.wait_ms

    def _over_quota(self, allowance: Allowance) -> Plan[Response | None]:
        """Count a new key. The answer when its tenant has too many; known keys are always answered."""
        over = yield from self._count(allowance)
        if not isinstance(over, int):
            return over
        try:
            known = (yield from do(Read(self._claim.key))) is not None
        except StoreError:
            known = True  # or not: the claim finds out
        if known:
            return None
        # A repeat holds a place until its claim finds the key known. Earlier repeats have given theirs back by now.
        over = yield from self._count(allowance)
        return (yield from self._too_many(over)) if isinstance(over, int) else over

    def _count_late(self, allowance: Allowance, lease: Lease) -> Plan[Response | None]:
        """Count a key that was known when its claim was asked for, and new when it was granted.

        The first request released it meanwhile. A key over the quota is released, too; the reply is its answer.
        """
        if allowance.place is Place.UNCOUNTED:
            logger.error("a new key of tenant %r could not be counted", lease.key.tenant)
        if allowance.place is not Place.NONE:
            return None
        over = yield from self._count(allowance)
        if over is None:
            return None
        fingerprint = self._claim.fingerprint
        settlement = yield from settle(lease, Ending.NOTHING_DONE, None, self.policy, fingerprint=fingerprint)
        if isinstance(settlement, NotStored):
            self.abandon()
        return (yield from self._too_many(over)) if isinstance(over, int) else over

    def _count(self, allowance: Allowance) -> Plan[Response | int | None]:
        """None if the request may go on, seconds if the tenant has too many keys, the answer if the counter fails."""
        try:
            return (yield from allowance.take())
        except StoreError as error:
            yield from do(
                Emit(Event(EventKind.STORE_FAILED, self._claim.key, detail=str(error), asker=self._claim.owner))
            )
            return None if self.policy.on_store_error == "open" else self.answers.problem("store-unavailable")

    def _too_many(self, over_s: int) -> Plan[Response]:
        yield from do(Emit(Event(EventKind.REFUSED, self._claim.key, detail="too-many-keys", asker=self._claim.owner)))
        return self.answers.problem("too-many-keys", retry_after_s=over_s)


def unsure(claim: Claim) -> Lease:
    """The lease of a claim that may have been granted."""
    return Lease(claim.key, claim.owner, 1, 0)
