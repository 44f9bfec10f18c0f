"""One keyed request: what its claim means, how its view ended, and which response is sent. The front asks the store."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, assert_never

from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from semel.codecs.responses import AnswerNotKept
from semel.core import http
from semel.core.decisions import NotStored, Run, Settlement, Superseded
from semel.core.http import Headers
from semel.core.records import Lease
from semel.core.tables import Ending
from semel.django.wire import django_response, parts_of, response_of, strip_directives
from semel.http.admission import Answered, Begun, Keyed
from semel.http.answers import NO_ANSWER, TRACEBACK, Answers, Ended
from semel.http.gate import Admitted
from semel.runtime.calls import Unprotected
from semel.runtime.keeper import Kept
from semel.runtime.operation import Operation, enter

if TYPE_CHECKING:
    from semel.django.front import AnyFront

ATTRIBUTE = "_semel_exchange"
LOGGED = "_has_been_logged"
"""The attribute by which Django remembers not to log a response again."""


def tell_no_waiter() -> None:
    """The `tell_begun` of an exchange whose front does not wait for the work to begin."""


class ViewPhase(Enum):
    """How far the view is. It never goes back."""

    ADMITTED = auto()
    """It has not begun, and will not begin if its caller gets another answer."""
    RUNNING = auto()
    """It runs under its lease, and its answer is not settled."""
    UNPROTECTED = auto()
    """It runs without one: the store could not decide, and the policy says to run without it."""
    ENDED = auto()
    """How it ended is decided, and the store is asked, or was asked."""


class DjangoExchange:
    """All mutable state of one keyed request."""

    def __init__(
        self,
        front: AnyFront,
        request: HttpRequest,
        admitted: Admitted,
        answers: Answers,
        headers: Headers,
        body: bytes,
        *,
        in_view: bool = False,
    ) -> None:
        self.front = front
        self.policy = admitted.policy
        self.request = request
        self.admitted = admitted
        # With this path the view itself claims the key, after it has authenticated the caller.
        self.asked_at = request.path_info if in_view else ""
        self.parts = parts_of(request, headers, body)
        self.answers = answers
        self.keyed: Keyed | None = None
        self.operation: Operation | None = None
        self.phase = ViewPhase.ADMITTED
        self.caller_left = False
        self.tell_begun: Callable[[], object] = tell_no_waiter
        # Under exactly-once the request has a store of its own: its transaction.
        self.transaction: Any = front.new_transaction()
        self.asker: Any = front.host.asker if self.transaction is None else front.host.asker_on(self.transaction)
        self.held_max = 0 if self.transaction is None else self.transaction.held_max
        self._kept: Kept | None = None
        self._ended: Ended | None = None
        self._undone = False

    @property
    def running(self) -> bool:
        return self.phase is ViewPhase.RUNNING

    @property
    def attempt(self) -> tuple[Keyed, Lease]:
        """What the front settles."""
        assert self.keyed is not None
        assert self.operation is not None
        return self.keyed, self.operation.lease

    def key(self, tenant: str | None) -> Keyed:
        """The request with its key, for this tenant."""
        claim = self.front.gate.claim(self.admitted, tenant, self.parts)
        self.keyed = Keyed(
            self.front.host,
            self.front.gate,
            self.policy,
            self.answers,
            claim,
            self.parts.headers,
            asked_at=self.asked_at,
            transaction=self.transaction,
        )
        return self.keyed

    def begun(self, begun: Begun) -> HttpResponse | None:
        """Take the decision about the claim. Returns its answer, or None when the work may run."""
        assert self.keyed is not None
        match begun:
            case Run(lease) if self.caller_left:  # nothing has begun, and there is no caller to answer
                self.keyed.abandon(lease)
                return django_response(self.answers.problem("not-executed"))
            case Run(lease):
                self._start(lease)
                self.tell_begun()
                return None
            case Unprotected(lease):
                self.phase = ViewPhase.UNPROTECTED
                self._enter(Operation(lease))
                return None
            case Answered(response, replayed):
                answer = django_response(response)
                setattr(answer, LOGGED, replayed)  # a failure was logged at its first answer
                return answer
            case _:
                assert_never(begun)

    def _start(self, lease: Lease) -> None:
        if self.transaction is None:
            self._kept = self.front.host.keeper.keep(lease, lease_ms=self.policy.lease_ms)
        self.phase = ViewPhase.RUNNING
        self._enter(Operation(lease, self._kept, self.transaction))

    def _enter(self, operation: Operation) -> None:
        self.operation = operation
        enter(operation)

    # What the work says about itself

    def raised(self, error: Exception) -> HttpResponse | None:
        """Note an exception of the view. Only work that declares that nothing was done gets its answer here."""
        if self.phase in (ViewPhase.ADMITTED, ViewPhase.ENDED):
            return None
        if (declared := self.answers.declared(error)) is not None:
            self._ended = declared
            return django_response(declared.response)
        self._undone = isinstance(error, tuple(self.policy.release_exceptions))
        return None

    def reported(self, error: Exception) -> None:
        """Note an exception that the application did not handle. Django has reported it, and answers with its page."""
        if self.operation is not None:
            self.raised(error)
            self.operation.reported = error

    def broke_off(self, error: Exception) -> HttpResponse:
        """Note an exception that came after Django's answer had begun, and give the answer: Django has none for it."""
        if not self._is_undone():
            self._judge_error(error)
        return HttpResponse(status=500)

    # After the work

    def end(self, response: HttpResponseBase, body: bytes | None) -> Ended | None:
        """Say how the view ended; None when nothing is to be settled. `body` is None if it is larger than is kept."""
        enter(None)
        if self.running:
            return self._end_with(self._judge_answer(response, body))
        if self.phase is ViewPhase.UNPROTECTED:
            response.headers["Idempotency-Stored"] = "false"
        strip_directives(response)
        return None

    def end_interrupted(self, error: BaseException) -> Ended | None:
        """The same for work that ended without an answer: its exception passed Django, or it was cancelled."""
        enter(None)
        if not self.running:
            return None
        if not isinstance(error, Exception):
            return self._end_with(Ended(Ending.INTERRUPTED, None, NO_ANSWER))
        undone = self._is_undone()
        return self._end_with(Ended(Ending.NOTHING_DONE, None, NO_ANSWER) if undone else self._judge_error(error))

    def _end_with(self, ended: Ended) -> Ended:
        self.phase = ViewPhase.ENDED
        if self._kept is not None:
            self.front.host.keeper.stop(self._kept)
        return ended

    def answer(self, response: HttpResponseBase, ended: Ended, settlement: Settlement) -> HttpResponseBase:
        """The response to send: the view's own, or the one that the store's reply asks for."""
        strip_directives(response)
        if isinstance(settlement, Superseded) or ended is self._ended:
            instead = django_response(self.answers.settled(settlement, ended))
            setattr(instead, LOGGED, True)
            instead._resource_closers.extend(response._resource_closers)
            return instead
        if isinstance(settlement, NotStored):
            name, value = http.NOT_STORED
            response.headers[name.decode()] = value.decode()
        return response

    def _judge_answer(self, response: HttpResponseBase, body: bytes | None) -> Ended:
        assert self.operation is not None
        if self._ended is not None:
            return self._ended
        answer = response_of(response, body or b"")
        raised = self.operation.reported
        if self._undone or (raised is not None and self._is_undone()):  # the framework answers
            return Ended(Ending.NOTHING_DONE, None, answer)
        assert self.keyed is not None
        known = self._known(response, body)
        try:
            if raised is None:
                return self.keyed.answered(answer, self.operation, too_large=known)
            done = self.keyed.raised(raised, answer, too_large=known)
        except ValueError as error:  # an unknown directive
            self.front.report(self.request, error)
            done = self._ended = self.answers.raised()
        if done.result is None:  # the exception's own declaration comes before Django's page
            self._ended = done
        return done

    def _is_undone(self) -> bool:
        return self._undone or (self.operation is not None and self.operation.nothing_was_done)

    def _known(self, response: HttpResponseBase, body: bytes | None) -> AnswerNotKept | None:
        """What is known of the work if its answer cannot, or must not, be kept; None for an answer that is kept."""
        if body is None:
            streams_on = isinstance(response, StreamingHttpResponse) and self.transaction is None
            return AnswerNotKept.ANSWERING if streams_on else AnswerNotKept.ENDED
        debugged = settings.DEBUG and response.status_code >= 400 and (self._has_raised() or TRACEBACK in body)
        return AnswerNotKept.ENDED if debugged else None

    def _has_raised(self) -> bool:
        return self.operation is not None and self.operation.reported is not None

    def _judge_error(self, error: Exception) -> Ended:
        assert self.keyed is not None
        self._ended = self.keyed.raised(error)
        return self._ended
