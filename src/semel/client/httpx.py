"""A transport for httpx that sends requests safely again: wrap it around the transport that you have."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from semel.runtime.drive import drive

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
        self._transport, self._journal = transport, journal
        self._retry = retry or Retry()
        lease_ms = check_duration("lease", int(1_000 * lease))
        self._settings = CallerSettings(dialect=dialect, backoff=self._retry.backoff, lease_ms=lease_ms)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        intent = self._intent_of(request)
        sending = _Sending(self._transport, self._retry, request, intent)
        dialect = self._settings.dialect
        call = OutgoingCall(
            CallRequest(request.method, str(request.url), tuple(request.headers.items()), _body_of(request)),
            request.headers.get(dialect.header, "") if dialect.header else "",
            intent.part if intent else None,
        )
        result = drive(run_call(call, self._settings), sending.perform)
        match result:
            case CallAnswered():
                return sending.respond(result)
            case CallUnanswered():
                assert sending.error is not None
                raise sending.error
            case CallRefused():
                raise _refusal(result)

    def close(self) -> None:
        self._transport.close()

    def _intent_of(self, request: httpx.Request) -> Intent | None:
        """The intent of a request. The page that a redirect leads to is not the operation."""
        intent = request.extensions.get("semel")
        if intent is None or request.method in ("GET", "HEAD"):
            return None
        if not isinstance(intent, Intent):
            raise Misuse(f'extensions={{"semel": …}} takes an intent of a journal, not {type(intent).__name__}')
        if self._journal not in (None, intent.journal):
            raise Misuse("the intent is of another journal than the transport's: open both with the same Journal")
        return intent


class _Sending:
    """Performs the effects of one call."""

    def __init__(
        self, transport: httpx.BaseTransport, retry: Retry, request: httpx.Request, intent: Intent | None
    ) -> None:
        self._transport, self._retry, self._request, self._intent = transport, retry, request, intent
        self.error: httpx.TransportError | None = None
        self._response: httpx.Response | None = None

    def perform(self, effect: Effect[Any]) -> Any:
        match effect:
            case SendRequest():
                return self._send(effect)
            case JournalCall():
                assert self._intent is not None
                return self._intent.journal.answer(effect)
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
            case Pause(pause_ms):
                time.sleep(pause_ms / 1_000)
                return time.monotonic_ns() // 1_000_000
            case AwaitIntent(_, timeout_ms):
                time.sleep(min(timeout_ms / 1_000, POLL_S))
                return None
            case ReportAttempt():
                return None
            case _:
                raise AssertionError(f"no adapter performs {effect}")

    def respond(self, result: CallAnswered) -> httpx.Response:
        """The answer as a response. One that is streamed is returned as it came."""
        replayed = result.origin is not AnswerOrigin.FRESH
        told = {"semel": CallReport(result.key, result.attempts, replayed)}
        answer = result.answer
        if isinstance(answer, KeptAnswer):
            if answer.body is None:
                raise ResultNotKept(
                    f"the operation was carried out; its answer of {answer.body_size} bytes was too large to be kept"
                )
            return httpx.Response(answer.status, headers=answer.headers, content=answer.body, extensions=told)
        assert self._response is not None
        self._response.extensions.update(told)
        return self._response

    def _send(self, effect: SendRequest) -> CallAnswer | SendFailure:
        if self._response is not None:
            self._response.close()
        headers = self._request.headers.copy()
        headers.update(dict(effect.headers))
        if "content-length" in headers:
            headers["content-length"] = str(len(effect.body))
        attempt = httpx.Request(
            self._request.method,
            self._request.url,
            headers=headers,
            stream=httpx.ByteStream(effect.body),
            extensions=self._request.extensions,
        )
        try:
            with self._renewing(effect.renew):
                return self._receive(self._transport.handle_request(attempt))
        except httpx.TransportError as error:
            self.error = error
            end = AttemptEnd.LOST
            if isinstance(error, NOT_REACHED):
                end = AttemptEnd.UNREACHED
            elif isinstance(error, NOT_SENDABLE):
                end = AttemptEnd.UNSENDABLE
            return SendFailure(end, f"{type(error).__name__}: {error}")

    def _receive(self, response: httpx.Response) -> CallAnswer:
        """The answer for the plan. Its body is read if the journal keeps it, or if it may be a problem document."""
        if self._intent is None and response.status_code < 400:
            self._response = response
            return CallAnswer(response.status_code, tuple(response.headers.items()))
        try:
            body = response.read()
        finally:
            response.close()
        headers = tuple((name, value) for name, value in response.headers.multi_items() if name not in OF_BODY)
        self._response = httpx.Response(
            response.status_code, headers=headers, content=body, extensions=dict(response.extensions)
        )
        return CallAnswer(response.status_code, headers, body)

    @contextmanager
    def _renewing(self, renew: RenewIntent | None) -> Iterator[None]:
        """Hold the intent while its request is under way. If that fails, the lease ends, and the key still protects."""
        if renew is None or self._intent is None:
            yield
            return
        journal, done = self._intent.journal, threading.Event()

        def hold() -> None:
            while not done.wait(renew.lease_ms / 3_000):
                try:
                    journal.answer(renew)
                except StoreError:
                    continue

        thread = threading.Thread(target=hold, daemon=True, name="semel-intent")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


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
