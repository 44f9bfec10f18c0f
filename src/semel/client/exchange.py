"""One call of a caller: what every adapter does with the plan of `core.callers`, whatever library sends the requests.

An adapter gives a function that sends one attempt and raises the errors of its library. It gets back where the answer
is: in the response of the last attempt, or in the journal.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin, urlsplit
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from semel.client.breaker import Passage
from semel.client.journal import Indeterminate, Intent, Journal, wall_clock_ms
from semel.client.marker import IntentMark
from semel.client.reporter import CallReporter
from semel.client.retry import Retry
from semel.core.callers import (
    AnswerOrigin,
    AwaitIntent,
    CallAnswered,
    CallerSettings,
    CallRefusal,
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
    run_call,
)
from semel.core.calls import origin_of
from semel.core.dialects import RANDOM_BYTES, KeyDialect, make_key
from semel.core.effects import Effect, Pause
from semel.core.journal import CallRequest, JournalCall, KeptAnswer, LeaveIntent, RenewIntent, TextHeaders
from semel.core.records import check_duration
from semel.core.relay import NewOwner, ReadClock
from semel.core.retries import AttemptEnd, CallAnswer, RepeatLimit, find_header
from semel.errors import CircuitOpen, InProgress, KeyReused, Misuse, ResultNotKept, StoreError
from semel.runtime.arguments import check_function
from semel.runtime.drive import adrive, drive
from semel.runtime.listener import OnEvent, logged

POLL_S = 0.05
ACCEPTED = 202
READ_MAX = 1_048_576
"""The body of an answer that says it is longer is left to the caller, as one that does not say how long it is."""
ONCE_ONLY = (
    "the body of this request is a generator or an open file, which can be sent only once: give it as bytes, "
    'for example b"".join(chunks), so that a repeat sends the same'
)
OF_BODY = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers that say how a body was sent. They are not true of a body that was read and decoded."""
UNAUTHORIZED = 401


class CallReport(Struct, frozen=True):
    """What `report_of(response)` tells about a call."""

    key: str
    attempts: int
    """How many requests this call has sent; 0 if the answer comes from the journal."""
    replayed: bool
    """Whether this is the stored answer to an earlier attempt."""
    end: AttemptEnd
    """How the last attempt ended."""
    unkept: str = ""
    """Why the journal could not keep the answer. The intent is still open then."""
    limit: RepeatLimit | None = None
    """Why it was not sent again, although another attempt might have got an answer. An intent is still open then."""


reports: WeakKeyDictionary[object, CallReport] = WeakKeyDictionary()


def report_of(response: object) -> CallReport:
    """What the call of a response was: its key, how many requests it took, and whether the answer is a stored one.

    It also takes an error of the library, when a call has ended without an answer.
    """
    try:
        return reports[response]
    except (KeyError, TypeError):
        raise Misuse(f"no adapter of semel.client has given this {type(response).__name__}") from None


class CallEnd(Struct, frozen=True):
    """The answer of the last attempt is the answer of the call, unless one is `kept` in the journal."""

    report: CallReport
    kept: KeptAnswer | None


class LibraryErrors(Struct, frozen=True):
    """The errors of one library, by what they say of the request. Any other error means that it was not sent."""

    unreached: tuple[type[Exception], ...]
    """No connection: the request cannot have arrived."""
    unsendable: tuple[type[Exception], ...]
    """The request could not be made, and repeating it would not help."""
    lost: tuple[type[Exception], ...]
    """The request may have arrived."""

    def classify(self, causes: list[BaseException]) -> AttemptEnd:
        """What an error says, with the errors that caused it."""
        if _has(causes, ssl.SSLCertVerificationError) or _has(causes, self.unsendable):
            return AttemptEnd.UNSENDABLE
        if _has(causes, self.unreached):
            return AttemptEnd.UNREACHED
        return AttemptEnd.LOST if _has(causes, self.lost) else AttemptEnd.UNSENDABLE


class Caller:
    """What the calls of one adapter have in common: the journal, how to repeat, and how the service wants the key."""

    def __init__(
        self,
        journal: Journal | None,
        retry: Retry | None,
        dialect: KeyDialect,
        lease: float,
        on_event: OnEvent,
        errors: LibraryErrors,
    ) -> None:
        check_function(on_event, "on_event=")
        self.journal, self.retry, self.errors, self.on_event = journal, retry or Retry(), errors, logged(on_event)
        lease_ms = check_duration("lease", int(1_000 * lease))
        self.settings = CallerSettings(dialect=dialect, backoff=self.retry.backoff, lease_ms=lease_ms)

    def find_intent(self, method: str, named: object) -> Intent | None:
        """What a request names as its intent. The page that a redirect leads to is not the operation."""
        if named is None or method in ("GET", "HEAD"):
            return None
        if isinstance(named, IntentMark):
            named = named.intent
        if not isinstance(named, Intent):
            raise Misuse(f"a request belongs to an intent of a journal, not to {type(named).__name__} {named!r}")
        if self.journal not in (None, named.journal):
            raise Misuse("the intent is of another journal than the transport's: open both with the same Journal")
        named.is_used = True
        return named

    def call_of(self, request: CallRequest, intent: Intent | None, earlier_key: str = "") -> OutgoingCall:
        """The call that a request asks for, with the key that the caller has put into it."""
        dialect = self.settings.dialect
        key = find_header(request.headers, dialect.header)
        sent = replace(request, dialect=dialect.name)
        return OutgoingCall(sent, key, intent.part if intent else None, earlier_key)


def is_streamed(intent: Intent | None, status: int, headers: Mapping[str, str]) -> bool:
    """Whether the body of an answer is left to the caller, who may want to read it bit by bit.

    No journal keeps it then, it is no problem document, and it is long. A short one is read here, so that a connection
    that fails meanwhile is repeated.
    """
    if intent is not None or status >= 400 or status == ACCEPTED:
        return False
    length = headers.get("Content-Length", "")
    return not length.isdecimal() or int(length) > READ_MAX


def answer_of(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> CallAnswer:
    """An answer whose body was read and decoded."""
    return CallAnswer(status, tuple(each for each in text_headers(headers) if each[0].lower() not in OF_BODY), body)


def text_headers(headers: Iterable[tuple[str, str | bytes]]) -> TextHeaders:
    """Headers as plain text, whatever kinds of text a library has."""
    return tuple((str(name), _text_of(value)) for name, value in headers)


def encode_headers(headers: TextHeaders) -> list[tuple[bytes, bytes]]:
    """Headers as bytes, for a library that takes text only if it is ASCII."""
    return [(name.encode(), value.encode()) for name, value in headers]


def _text_of(value: str | bytes) -> str:
    if isinstance(value, str):
        try:
            value.encode()
            return str(value)
        except UnicodeEncodeError:  # a library has read bytes as UTF-8 that are none
            value = value.encode("utf-8", "surrogateescape")
    return value.decode("latin-1")


def is_interim(method: str, status: int) -> bool:
    """Whether an answer is none: after a 1xx there is one to come. A GET may ask to switch protocols."""
    return 100 <= status < 200 and (status, method.upper()) != (HTTPStatus.SWITCHING_PROTOCOLS, "GET")


def reason_of(status: int) -> str:
    """The words that go with a status; empty for one without."""
    return next((each.phrase for each in HTTPStatus if each == status), "")


def leads_elsewhere(status: int, location: str | None, url: str) -> bool:
    """Whether an answer redirects to another origin, where the key of the caller must not go."""
    if not location or not 300 <= status < 400:
        return False
    here, there = urlsplit(url), urlsplit(urljoin(url, location))
    return (here.scheme, here.hostname, here.port) != (there.scheme, there.hostname, there.port)


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
        self._caller, self._intent = caller, intent
        self._origin = origin_of(call.request.url)
        self._handled = sys.exception()
        self._error: Exception | None = None
        self._held: RenewIntent | None = None
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
        return LeaveIntent(self._held.id, self._held.owner, "the sender was interrupted") if self._held else None

    def answered(self, answer: CallAnswer) -> CallAnswer:
        self._reporter.detail = str(answer.status)
        return answer

    def failed(self, error: Exception) -> SendFailure:
        self._error, self._reporter.detail = error, type(error).__name__
        end = self._caller.errors.classify(list(_causes(error, self._handled)))
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
                raise _refusal(result, self._caller.settings.dialect)


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
                return self.journal.answer(effect)
            case Pause(pause_ms):
                time.sleep(pause_ms / 1_000)
                return time.monotonic_ns() // 1_000_000
            case AwaitIntent(_, timeout_ms):
                return time.sleep(min(timeout_ms / 1_000, POLL_S))
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
                return await asyncio.to_thread(self.journal.answer, effect)
            case Pause(pause_ms):
                await asyncio.sleep(pause_ms / 1_000)
                return time.monotonic_ns() // 1_000_000
            case AwaitIntent(_, timeout_ms):
                return await asyncio.sleep(min(timeout_ms / 1_000, POLL_S))
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


def _refusal(refused: CallRefused, dialect: KeyDialect) -> Exception:
    entry, reason = refused.entry, refused.refusal.value
    about = f"intent {entry.id.name!r}: {reason}"
    match refused.refusal:
        case CallRefusal.DRIFTED | CallRefusal.OTHER_KEY:
            if AttemptEnd.MOVED.value in entry.error:
                way_out = "the service redirected the first request, so send it to the new address, under a new name"
            elif entry.request.dialect != dialect.name:
                way_out = f"it was begun in the dialect {entry.request.dialect}, and this one is {dialect.name}"
            else:
                way_out = "a new operation needs a new name"
            return KeyReused(
                f"{about}; nothing was sent. The journal has {entry.request.method} {entry.request.url} with the "
                f"digest {entry.request.digest[:16]}, and this request has {refused.digest[:16]}: {way_out}"
            )
        case CallRefusal.TOO_OLD | CallRefusal.DOUBTFUL:
            return Indeterminate.of(entry, refused.refusal)
        case CallRefusal.BUSY:
            return InProgress(about)


def _causes(error: BaseException, handled: BaseException | None) -> Iterator[BaseException]:
    """An error and what caused it, up to the one that the caller was handling when the call began."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and cause is not handled and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _has(causes: list[BaseException], kinds: type[Exception] | tuple[type[Exception], ...]) -> bool:
    return any(isinstance(cause, kinds) for cause in causes)
