"""A transport for httpx that sends requests safely again: wrap it around the transport that you have."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
from msgspec import Struct

from semel.client.journal import Indeterminate, Intent, Journal, wall_clock_ms
from semel.client.retry import Retry
from semel.core.callers import (
    LEASE_MS,
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
from semel.core.dialects import DRAFT_07, RANDOM_BYTES, KeyDialect, make_key
from semel.core.effects import Effect, Pause
from semel.core.journal import CallRequest, JournalCall, KeptAnswer, RenewIntent
from semel.core.records import check_duration
from semel.core.relay import NewOwner, ReadClock
from semel.core.retries import AttemptEnd, CallAnswer
from semel.errors import InProgress, KeyReused, Misuse, ResultNotKept, StoreError
from semel.runtime.drive import adrive, drive

POLL_S = 0.05
NOT_REACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
NOT_SENDABLE = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
OF_BODY = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class CallReport(Struct, frozen=True):
    """What `response.extensions["semel"]` tells."""

    key: str
    attempts: int
    """How many requests this call has sent; 0 if the answer comes from the journal."""
    replayed: bool
    """Whether this is the stored answer to an earlier attempt."""


class _Front:
    """What both transports have: their settings, and what they make of a request."""

    def __init__(self, journal: Journal | None, retry: Retry | None, dialect: KeyDialect, lease: float) -> None:
        self._journal, self.retry = journal, retry or Retry()
        lease_ms = check_duration("lease", int(1_000 * lease))
        self.settings = CallerSettings(dialect=dialect, backoff=self.retry.backoff, lease_ms=lease_ms)

    def intent_of(self, request: httpx.Request) -> Intent | None:
        """The intent of a request. The page that a redirect leads to is not the operation."""
        intent = request.extensions.get("semel")
        if intent is None or request.method in ("GET", "HEAD"):
            return None
        if not isinstance(intent, Intent):
            raise Misuse(f'extensions={{"semel": …}} takes an intent of a journal, not {type(intent).__name__}')
        if self._journal not in (None, intent.journal):
            raise Misuse("the intent is of another journal than the transport's: open both with the same Journal")
        return intent

    def call_of(self, request: httpx.Request, body: bytes, intent: Intent | None) -> OutgoingCall:
        header = self.settings.dialect.header
        return OutgoingCall(
            CallRequest(request.method, str(request.url), tuple(request.headers.items()), body),
            request.headers.get(header, "") if header else "",
            intent.part if intent else None,
        )


class IdempotentTransport(httpx.BaseTransport):
    """`httpx.Client(transport=IdempotentTransport(httpx.HTTPTransport()))` gives each POST and PATCH one key.

    With `extensions={"semel": intent}` a request belongs to an intent, whose key outlives the process. `lease` says for
    how many seconds an intent is held without a sign of life: then another process sends it, with the same key.
    """

    def __init__(
        self,
        transport: httpx.BaseTransport,
        *,
        journal: Journal | None = None,
        retry: Retry | None = None,
        dialect: KeyDialect = DRAFT_07,
        lease: float = LEASE_MS / 1_000,
    ) -> None:
        self._transport, self._front = transport, _Front(journal, retry, dialect, lease)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        intent = self._front.intent_of(request)
        call = self._front.call_of(request, _body_of(request), intent)
        sending = _Sending(self._transport, self._front.retry, request, intent)
        return sending.end(drive(run_call(call, self._front.settings), sending.perform))

    def close(self) -> None:
        self._transport.close()


class AsyncIdempotentTransport(httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`. The journal is asked in a thread, so that the event loop never waits for it."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        *,
        journal: Journal | None = None,
        retry: Retry | None = None,
        dialect: KeyDialect = DRAFT_07,
        lease: float = LEASE_MS / 1_000,
    ) -> None:
        self._transport, self._front = transport, _Front(journal, retry, dialect, lease)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        intent = self._front.intent_of(request)
        call = self._front.call_of(request, _body_of(request), intent)
        sending = _AsyncSending(self._transport, self._front.retry, request, intent)
        return sending.end(await adrive(run_call(call, self._front.settings), sending.perform))

    async def aclose(self) -> None:
        await self._transport.aclose()


class _Exchange:
    """One call: what the two ways to send have in common."""

    def __init__(self, retry: Retry, request: httpx.Request, intent: Intent | None) -> None:
        self._retry, self._request, self.intent = retry, request, intent
        self._error: httpx.TransportError | None = None
        self.response: httpx.Response | None = None

    def answer(self, effect: Effect[Any]) -> Any:
        """Perform an effect that waits for nothing."""
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
                return self._retry.allows is None or self._retry.allows()
            case ReportAttempt():
                return None
            case _:
                raise AssertionError(f"no adapter performs {effect}")

    def attempt(self, effect: SendRequest) -> httpx.Request:
        """The request of one attempt."""
        headers = self._request.headers.copy()
        headers.update(dict(effect.headers))
        if "content-length" in headers:
            headers["content-length"] = str(len(effect.body))
        return httpx.Request(
            self._request.method,
            self._request.url,
            headers=headers,
            stream=httpx.ByteStream(effect.body),
            extensions=self._request.extensions,
        )

    def is_streamed(self, response: httpx.Response) -> bool:
        """Whether the body is left to the caller: no journal keeps it, and it is no problem document."""
        return self.intent is None and response.status_code < 400

    def received(self, response: httpx.Response, body: bytes | None) -> CallAnswer:
        """The answer for the plan; without `body` the response is left as it came."""
        headers = tuple((name, value) for name, value in response.headers.multi_items() if name not in OF_BODY)
        if body is not None:
            response = httpx.Response(
                response.status_code, headers=headers, content=body, extensions=dict(response.extensions)
            )
        self.response = response
        return CallAnswer(response.status_code, headers, body or b"")

    def failed(self, error: httpx.TransportError) -> SendFailure:
        self._error, end = error, AttemptEnd.LOST
        if isinstance(error, NOT_REACHED):
            end = AttemptEnd.UNREACHED
        elif isinstance(error, NOT_SENDABLE):
            end = AttemptEnd.UNSENDABLE
        return SendFailure(end, f"{type(error).__name__}: {error}")

    def end(self, result: CallResult) -> httpx.Response:
        match result:
            case CallAnswered():
                return self._respond(result)
            case CallUnanswered():
                assert self._error is not None
                raise self._error
            case CallRefused():
                raise _refusal(result)

    def _respond(self, result: CallAnswered) -> httpx.Response:
        told = {"semel": CallReport(result.key, result.attempts, result.origin is not AnswerOrigin.FRESH)}
        answer = result.answer
        if isinstance(answer, KeptAnswer):
            if answer.body is None:
                raise ResultNotKept(
                    f"the operation was carried out; its answer of {answer.body_size} bytes was too large to be kept"
                )
            return httpx.Response(answer.status, headers=answer.headers, content=answer.body, extensions=told)
        assert self.response is not None
        self.response.extensions.update(told)
        return self.response


class _Sending(_Exchange):
    """Performs the effects of one call."""

    def __init__(
        self, transport: httpx.BaseTransport, retry: Retry, request: httpx.Request, intent: Intent | None
    ) -> None:
        super().__init__(retry, request, intent)
        self._transport = transport

    def perform(self, effect: Effect[Any]) -> Any:
        match effect:
            case SendRequest():
                return self._send(effect)
            case JournalCall():
                assert self.intent is not None
                return self.intent.journal.answer(effect)
            case Pause(pause_ms):
                time.sleep(pause_ms / 1_000)
                return time.monotonic_ns() // 1_000_000
            case AwaitIntent(_, timeout_ms):
                return time.sleep(min(timeout_ms / 1_000, POLL_S))
            case _:
                return self.answer(effect)

    def _send(self, effect: SendRequest) -> CallAnswer | SendFailure:
        if self.response is not None:
            self.response.close()
        try:
            with self._renewing(effect.renew):
                response = self._transport.handle_request(self.attempt(effect))
                if self.is_streamed(response):
                    return self.received(response, None)
                try:
                    return self.received(response, response.read())
                finally:
                    response.close()
        except httpx.TransportError as error:
            return self.failed(error)

    @contextmanager
    def _renewing(self, renew: RenewIntent | None) -> Iterator[None]:
        """Hold the intent while its request is under way. If that fails, the lease ends, and the key still protects."""
        if renew is None or self.intent is None:
            yield
            return
        journal, done = self.intent.journal, threading.Event()

        def hold() -> None:
            while not done.wait(renew.lease_ms / 3_000):
                with suppress(StoreError):
                    journal.answer(renew)

        thread = threading.Thread(target=hold, daemon=True, name="semel-intent")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


class _AsyncSending(_Exchange):
    """The same with `await`."""

    def __init__(
        self, transport: httpx.AsyncBaseTransport, retry: Retry, request: httpx.Request, intent: Intent | None
    ) -> None:
        super().__init__(retry, request, intent)
        self._transport = transport

    async def perform(self, effect: Effect[Any]) -> Any:
        match effect:
            case SendRequest():
                return await self._send(effect)
            case JournalCall():
                assert self.intent is not None
                return await asyncio.to_thread(self.intent.journal.answer, effect)
            case Pause(pause_ms):
                await asyncio.sleep(pause_ms / 1_000)
                return time.monotonic_ns() // 1_000_000
            case AwaitIntent(_, timeout_ms):
                return await asyncio.sleep(min(timeout_ms / 1_000, POLL_S))
            case _:
                return self.answer(effect)

    async def _send(self, effect: SendRequest) -> CallAnswer | SendFailure:
        if self.response is not None:
            await self.response.aclose()
        holding = asyncio.ensure_future(self._hold(effect.renew)) if effect.renew else None
        try:
            response = await self._transport.handle_async_request(self.attempt(effect))
            if self.is_streamed(response):
                return self.received(response, None)
            try:
                return self.received(response, await response.aread())
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            return self.failed(error)
        finally:
            if holding is not None:
                holding.cancel()

    async def _hold(self, renew: RenewIntent) -> None:
        """Hold the intent while its request is under way. If that fails, the lease ends, and the key still protects."""
        assert self.intent is not None
        while True:
            await asyncio.sleep(renew.lease_ms / 3_000)
            with suppress(StoreError):
                await asyncio.to_thread(self.intent.journal.answer, renew)


def _body_of(request: httpx.Request) -> bytes:
    """The bytes that every attempt sends."""
    # A redirect hands the stream of the first request on, so a form may come as one, too.
    is_form = request.headers.get("content-type", "").startswith("multipart/form-data")
    if is_form or isinstance(request.stream, httpx.ByteStream):
        return request.read()
    raise Misuse(
        "the body of this request is a generator, which can be sent only once: give it as bytes, "
        'for example content=b"".join(chunks), so that a repeat sends the same'
    )


def _refusal(refused: CallRefused) -> Exception:
    entry, reason = refused.entry, refused.refusal.value
    match refused.refusal:
        case CallRefusal.DRIFTED | CallRefusal.OTHER_KEY:
            return KeyReused(
                f"intent {entry.id.name!r}: {reason}; nothing was sent. The journal has {entry.request.method} "
                f"{entry.request.url} with the digest {entry.request.digest[:16]}, and this request has "
                f"{refused.digest[:16]}: a new operation needs a new name"
            )
        case CallRefusal.TOO_OLD | CallRefusal.DOUBTFUL:
            return Indeterminate(f"intent {entry.id.name!r}: {reason}; it was not sent again. {entry.error}".strip())
        case CallRefusal.BUSY:
            return InProgress(f"intent {entry.id.name!r}: {reason}")
