"""A client middleware for aiohttp that sends requests safely again."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, StreamReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpVersion11, RawResponseMessage
from aiohttp.payload import AsyncIterablePayload, IOBasePayload
from multidict import CIMultiDict, CIMultiDictProxy

from semel.client.answers import (
    READ_MAX,
    answer_of,
    encode_headers,
    is_interim,
    is_streamed,
    leads_elsewhere,
    reason_of,
    text_headers,
)
from semel.client.caller import ONCE_ONLY, Caller, LibraryErrors
from semel.client.exchange import arun_exchange
from semel.client.journal import Journal
from semel.client.marker import HEADER
from semel.client.reports import reports
from semel.client.retry import Retry
from semel.core.call_values import LEASE_MS, SendRequest
from semel.core.dialects import DRAFT_07, KeyDialect
from semel.core.journal import CallRequest, KeptAnswer
from semel.core.retries import CallAnswer
from semel.errors import Misuse
from semel.runtime.listener import OnEvent, ignore

ERRORS = LibraryErrors(
    unreached=(aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError),
    unsendable=(aiohttp.ClientConnectorCertificateError, aiohttp.InvalidURL),
    lost=(aiohttp.ClientError, TimeoutError, OSError),
)


class IdempotentMiddleware:
    """`aiohttp.ClientSession(middlewares=[IdempotentMiddleware()])` gives each POST and PATCH one key.

    With `headers=intent.headers` a request belongs to an intent, whose key outlives the process. `lease` says for how
    many seconds an intent is held without a sign of life: then another process sends it, with the same key.
    """

    def __init__(
        self,
        *,
        journal: Journal | None = None,
        retry: Retry | None = None,
        dialect: KeyDialect = DRAFT_07,
        lease: float = LEASE_MS / 1_000,
        on_event: OnEvent = ignore,
    ) -> None:
        self._caller = Caller(journal, retry, dialect, lease, on_event, ERRORS)
        # A middleware around this one, such as one for digest authentication, sends the same object once more.
        self._keys: WeakKeyDictionary[ClientRequest, str] = WeakKeyDictionary()

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        intent = self._caller.find_intent(request.method, request.headers.get(HEADER))
        headers, body = request.headers.copy(), await _body_of(request)
        request.headers.popall(HEADER, None)
        sent = CallRequest(request.method, str(request.url), text_headers(request.headers.items()), body)
        call = self._caller.call_of(sent, intent, self._keys.get(request, ""))
        response: ClientResponse | None = None

        async def attempt(effect: SendRequest) -> CallAnswer:
            nonlocal response
            if response is not None:
                response.release()
            request.headers.update(effect.headers)
            if effect.body:
                await request.update_body(effect.body)
            response = await handler(request)
            if is_interim(request.method, response.status):
                response.close()
                raise aiohttp.ClientConnectionError(f"{response.status} is no answer")
            is_read = not is_streamed(intent, response.status, response.headers)
            return answer_of(response.status, response.headers.items(), await response.read() if is_read else b"")

        try:
            end = await arun_exchange(self._caller, call, intent, attempt)
        finally:
            request.headers.clear()
            request.headers.extend(headers)
            if body:
                await request.update_body(body)
        if end.kept is not None:
            response = await _kept_response(request, end.kept)
        assert response is not None
        self._check_redirect(call.key, request, response)
        self._keys[request] = end.report.key
        reports[response] = end.report
        return response

    def _check_redirect(self, key: str, request: ClientRequest, response: ClientResponse) -> None:
        """Stop a session that would send the caller's own key elsewhere. No middleware can take out the header then."""
        is_page = response.status == 303 or (response.status in (301, 302) and request.method == "POST")
        where = response.headers.get("Location")
        if key and not is_page and leads_elsewhere(response.status, where, str(request.url)):
            response.release()
            raise Misuse(
                f"{request.url} redirects to another origin, {where}, and a session would send your own key there; "
                "nothing was sent there: call the new address, or let semel make the key"
            )


async def _body_of(request: ClientRequest) -> bytes:
    """The bytes that every attempt sends."""
    body = request.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, AsyncIterablePayload | IOBasePayload):
        raise Misuse(ONCE_ONLY)
    return await body.as_bytes()


class _KeptConnection:
    """What a response reads an answer of the journal from. It is its own protocol."""

    upgraded = False

    def __init__(self, kept: KeptAnswer, loop: asyncio.AbstractEventLoop) -> None:
        self.protocol = self
        headers = CIMultiDictProxy(CIMultiDict(kept.headers))
        raw_headers = tuple(encode_headers(kept.headers))
        self._message = RawResponseMessage(
            HttpVersion11, kept.status, reason_of(kept.status), headers, raw_headers, False, None, False, False
        )
        self._stream = StreamReader(BaseProtocol(loop), READ_MAX, loop=loop)
        self._stream.feed_data(kept.body or b"")
        self._stream.feed_eof()

    async def read(self) -> tuple[RawResponseMessage, StreamReader]:
        return self._message, self._stream

    def release(self) -> None:
        """There is no connection."""

    close = release


class _NothingWritten:
    output_size = 0


async def _kept_response(request: ClientRequest, kept: KeptAnswer) -> ClientResponse:
    """An answer of the journal, as if it had just come."""
    response_class: Any = request.response_class
    response: ClientResponse = response_class(
        request.method,
        request.url,
        writer=None,
        continue100=None,
        timer=None,
        request_info=request.request_info,
        traces=[],
        loop=request.loop,
        session=request.session,
        stream_writer=_NothingWritten(),
    )
    return await response.start(cast("Any", _KeptConnection(kept, request.loop)))
