"""One call of a caller: what every adapter does with the plan of `core.callers`, whatever library sends the requests.

An adapter gives a function that sends one attempt and raises the errors of its library. It gets back where the answer
is: in the response of the last attempt, or in the journal.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from msgspec import Struct

from semel.client.breaker import Passage
from semel.client.caller import Caller, find_causes
from semel.client.journal import Intent, Journal, wall_clock_ms
from semel.client.refusals import refusal_of
from semel.client.reporter import CallReporter
from semel.client.reports import CallReport, reports
from semel.core.call_values import (
    AnswerOrigin,
    AwaitIntent,
    CallAnswered,
    CallRefused,
    CallResult,
    CallUnanswered,
    DrawNumber,
    NewKey,
    OutgoingCall,
    ReadDate,
    ReportAttempt,
    SendFailure,
    SendRequest,
    SpendRetry,
)
from semel.core.callers import run_call
from semel.core.calls import origin_of
from semel.core.dialects import RANDOM_BYTES, make_key
from semel.core.effects import Effect, Pause
from semel.core.journal import JournalCall, KeptAnswer, LeaveIntent, OpenIntent, RenewIntent
from semel.core.relay import NewOwner, ReadClock
from semel.core.retries import AttemptEnd, CallAnswer
from semel.errors import CircuitOpen, Misuse, ResultNotKept, StoreError
from semel.runtime.drive import adrive, drive


class CallEnd(Struct, frozen=True):
    """The answer of the last attempt is the answer of the call, unless one is `kept` in the journal."""

    report: CallReport
    kept: KeptAnswer | None


def run_exchange(
    caller: Caller, call: OutgoingCall, intent: Intent | None, send: Callable[[SendRequest], CallAnswer]
) -> CallEnd:
    """Send the requests of a call. An error of the library is raised as it came."""
    exchange = SyncExchange(caller, call, intent, send)
    try:
        result = drive(run_call(call, caller.settings), exchange.perform)
    except BaseException as error:
        if left := exchange.interrupt(error):
            with suppress(StoreError):
                exchange.journal.answer(left)
        raise
    return exchange.end(result)


async def arun_exchange(
    caller: Caller, call: OutgoingCall, intent: Intent | None, send: Callable[[SendRequest], Awaitable[CallAnswer]]
) -> CallEnd:
    """The same with `await`. The journal is asked in a thread, so that the event loop never waits for it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise Misuse(
            "nothing was sent: the async adapters need asyncio; under trio, use a sync one in a thread"
        ) from None
    exchange = AsyncExchange(caller, call, intent, send)
    try:
        result = await adrive(run_call(call, caller.settings), exchange.perform)
    except BaseException as error:
        if left := exchange.interrupt(error):
            with suppress(StoreError):
                await asyncio.to_thread(exchange.journal.answer, left)
        raise
    return exchange.end(result)


class CommonExchange:
    """What waits for nothing."""

    def __init__(self, caller: Caller, call: OutgoingCall, intent: Intent | None) -> None:
        self._caller, self._call, self._intent = caller, call, intent
        self._origin = origin_of(call.request.url)
        self._handled = sys.exception()
        self._error: Exception | None = None
        self._held: OpenIntent | RenewIntent | None = None
        """What this sender holds, or may hold as soon as the journal answers."""
        self._passage: Passage | None = None
        self._reporter = CallReporter(caller.on_event, call, self._origin)

    @property
    def journal(self) -> Journal:
        assert self._intent is not None
        return self._intent.journal

    def answer(self, effect: Effect[Any]) -> Any:
        match effect:
            case ReadClock():
                return time.monotonic_ns() // 1_000_000
            case ReadDate():
                return wall_clock_ms()
            case DrawNumber():
                return random.random()
            case NewOwner():
                return os.urandom(RANDOM_BYTES).hex()
            case NewKey(format, name):
                return make_key(format, os.urandom(RANDOM_BYTES), wall_clock_ms(), name)
            case SpendRetry():
                budget = self._caller.retry.budget
                return budget is None or budget.withdraw(self._origin)
            case ReportAttempt(_, end):
                if self._passage is not None:
                    self._passage.end(end)
                return self._reporter.attempted(effect)
            case _:
                raise AssertionError(f"no adapter performs {effect}")

    def note(self, call: JournalCall[Any]) -> JournalCall[Any]:
        """A cancellation does not stop what the journal does in another thread: it may grant the intent afterwards."""
        if isinstance(call, OpenIntent):
            self._held = call
        return call

    def begin(self, request: SendRequest) -> SendFailure | None:
        """Note what is about to be sent. A failure means that it must not be."""
        self._held = request.renew
        self._reporter.begin(request.attempt)
        budget, breaker = self._caller.retry.budget, self._caller.retry.breaker
        if breaker is not None:
            try:
                self._passage = Passage(breaker, self._origin, request.attempt - 1)
            except CircuitOpen as error:
                self._passage, self._error, self._reporter.detail = None, error, type(error.__cause__).__name__
                return SendFailure(AttemptEnd.HELD_BACK, str(error.__cause__))
        if request.attempt == 1 and budget is not None:
            budget.deposit(self._origin)
        return None

    def interrupt(self, error: BaseException) -> LeaveIntent | None:
        """Tell breaker and listener, and say what to tell the journal, so that no sender need wait for the lease."""
        self._reporter.interrupted(error)
        if self._passage is not None:
            self._passage.leave(error)
        if self._held is None or isinstance(error, StoreError):
            return None
        return LeaveIntent(self._held.id, self._held.owner, "the sender was interrupted")

    def answered(self, answer: CallAnswer) -> CallAnswer:
        self._reporter.detail = str(answer.status)
        return answer

    def failed(self, error: Exception) -> SendFailure:
        self._error, self._reporter.detail = error, type(error).__name__
        end = self._caller.errors.classify(list(find_causes(error, self._handled)))
        return SendFailure(end, f"{type(error).__name__}: {error}")

    def end(self, result: CallResult) -> CallEnd:
        self._reporter.ended(result)
        match result:
            case CallAnswered():
                replayed = result.origin is not AnswerOrigin.FRESH
                report = CallReport(result.key, result.attempts, replayed, result.end, result.unkept, result.limit)
                return CallEnd(report, _kept(result))
            case CallUnanswered():
                assert self._error is not None
                with suppress(TypeError):  # an error of a built-in class takes no weak reference
                    end, limit = result.failure.end, result.limit
                    reports[self._error] = CallReport(result.key, result.attempts, False, end, limit=limit)
                raise self._error
            case CallRefused():
                raise refusal_of(result, self._call)


class SyncExchange(CommonExchange):
    def __init__(
        self, caller: Caller, call: OutgoingCall, intent: Intent | None, send: Callable[[SendRequest], CallAnswer]
    ) -> None:
        super().__init__(caller, call, intent)
        self._send = send

    def perform(self, effect: Effect[Any]) -> Any:
        match effect:
            case SendRequest():
                if held_back := self.begin(effect):
                    return held_back
                try:
                    with self._renewing(effect.renew):
                        return self.answered(self._send(effect))
                except Exception as error:
                    return self.failed(error)
            case JournalCall():
                return self.journal.answer(self.note(effect))
            case Pause(pause_ms):
                time.sleep(pause_ms / 1_000)
                return time.monotonic_ns() // 1_000_000
            case AwaitIntent(_, timeout_ms):
                return time.sleep(timeout_ms / 1_000)
            case _:
                return self.answer(effect)

    @contextmanager
    def _renewing(self, renew: RenewIntent | None) -> Iterator[None]:
        """Hold the intent while its request is under way. If that fails, the lease ends, and the key still protects."""
        if renew is None:
            yield
            return
        done = threading.Event()

        def hold() -> None:
            while not done.wait(renew.lease_ms / 3_000):
                with suppress(StoreError):
                    self.journal.answer(renew)

        thread = threading.Thread(target=hold, daemon=True, name="semel-intent")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


class AsyncExchange(CommonExchange):
    """The same with `await`."""

    def __init__(
        self,
        caller: Caller,
        call: OutgoingCall,
        intent: Intent | None,
        send: Callable[[SendRequest], Awaitable[CallAnswer]],
    ) -> None:
        super().__init__(caller, call, intent)
        self._send = send

    async def perform(self, effect: Effect[Any]) -> Any:
        match effect:
            case SendRequest():
                if held_back := self.begin(effect):
                    return held_back
                holding = asyncio.ensure_future(self._hold(effect.renew)) if effect.renew else None
                try:
                    return self.answered(await self._send(effect))
                except Exception as error:
                    return self.failed(error)
                finally:
                    if holding is not None:
                        holding.cancel()
            case JournalCall():
                return await asyncio.to_thread(self.journal.answer, self.note(effect))
            case Pause(pause_ms):
                await asyncio.sleep(pause_ms / 1_000)
                return time.monotonic_ns() // 1_000_000
            case AwaitIntent(_, timeout_ms):
                return await asyncio.sleep(timeout_ms / 1_000)
            case _:
                return self.answer(effect)

    async def _hold(self, renew: RenewIntent) -> None:
        """Hold the intent while its request is under way. If that fails, the lease ends, and the key still protects."""
        while True:
            await asyncio.sleep(renew.lease_ms / 3_000)
            with suppress(StoreError):
                await asyncio.to_thread(self.journal.answer, renew)


def _kept(answered: CallAnswered) -> KeptAnswer | None:
    kept = answered.answer
    if not isinstance(kept, KeptAnswer):
        return None
    if kept.body is None:
        raise ResultNotKept(
            f"the operation was carried out; its answer of {kept.body_size} bytes was too large to be kept"
        )
    return kept
