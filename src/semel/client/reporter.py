"""Reports one call to a listener, while it runs."""

from __future__ import annotations

import asyncio
import time

from semel.core.call_values import CallRefused, CallResult, OutgoingCall, ReportAttempt
from semel.core.calls import CallConclusion, CallEvent, call_key
from semel.core.events import EventKind
from semel.core.outcomes import CANCELLED, ERROR, JOURNAL, judge_call
from semel.errors import StoreError
from semel.runtime.listener import OnEvent

CANCELLATIONS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)


class CallReporter:
    """The events of one call. A listener that fails is logged, and changes nothing."""

    detail = ""
    """The status or the error of the last attempt."""

    def __init__(self, on_event: OnEvent, call: OutgoingCall, origin: str) -> None:
        self._on_event, self._call, self._origin = on_event, call, origin
        self._key, self._sent, self._began_s = call.key, 0, time.perf_counter()
        self._attempt_s = self._began_s

    def begin(self, attempt: int) -> None:
        """An attempt begins."""
        self._sent, self._attempt_s, self.detail = attempt, time.perf_counter(), ""

    def attempted(self, report: ReportAttempt) -> None:
        """An attempt has ended."""
        self._key = report.key
        outcome, reason = report.end.name, report.limit.name if report.limit else ""
        self._tell(EventKind.CALL_ATTEMPTED, report.attempt, outcome, reason, self._attempt_s, report.pause_ms)

    def ended(self, result: CallResult) -> None:
        outcome, reason = judge_call(result)
        if isinstance(result, CallRefused):
            self._key = result.entry.key
        else:
            self._key, self._sent = result.key, result.attempts
        self._tell(EventKind.CALL_ENDED, self._sent, outcome.name, reason, self._began_s)

    def interrupted(self, error: BaseException) -> None:
        is_cancelled, is_of_journal = isinstance(error, CANCELLATIONS), isinstance(error, StoreError)
        reason = CANCELLED if is_cancelled else JOURNAL if is_of_journal else ERROR
        self.detail = type(error).__name__
        self._tell(EventKind.CALL_ENDED, self._sent, CallConclusion.INTERRUPTED.name, reason, self._began_s)

    def _tell(
        self, kind: EventKind, attempt: int, outcome: str, reason: str, since_s: float, pause_ms: int = 0
    ) -> None:
        call = self._call
        self._on_event(
            CallEvent(
                kind,
                call_key(call.request.method, self._origin, self._key),
                attempt,
                self.detail,
                ran_ms=round(1_000 * (time.perf_counter() - since_s)),
                origin=self._origin,
                dialect=call.request.dialect,
                intent=call.intent.id.name if call.intent else "",
                outcome=outcome.lower(),
                reason=reason.lower(),
                pause_ms=pause_ms,
            )
        )
