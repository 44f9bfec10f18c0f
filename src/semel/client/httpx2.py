"""Transports for httpx2 that send requests safely again: wrap one around the transport that you have."""

from __future__ import annotations

import httpx2

from semel.client.arguments import check_sender
from semel.client.journal import Journal
from semel.client.retry import Retry
from semel.client.transport import Transport
from semel.core.call_values import LEASE_MS
from semel.core.dialects import DRAFT_07, KeyDialect
from semel.runtime.listener import OnEvent, ignore

__all__ = ["AsyncIdempotentTransport", "IdempotentTransport"]


class IdempotentTransport(httpx2.BaseTransport):
    """`httpx2.Client(transport=IdempotentTransport(httpx2.HTTPTransport()))` gives each POST and PATCH one key.

    With `extensions={"semel": intent}` a request belongs to an intent, whose key outlives the process. `lease` says for
    how many seconds an intent is held without a sign of life: then another process sends it, with the same key.
    """

    def __init__(
        self,
        transport: httpx2.BaseTransport,
        *,
        journal: Journal | None = None,
        retry: Retry | None = None,
        dialect: KeyDialect = DRAFT_07,
        lease: float = LEASE_MS / 1_000,
        on_event: OnEvent = ignore,
    ) -> None:
        check_sender(transport, "handle_request", "transport", "sync, such as httpx2.HTTPTransport()")
        self._inner, self._transport = transport, Transport(httpx2, journal, retry, dialect, lease, on_event)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response: httpx2.Response = self._transport.send(request, self._inner.handle_request)
        return response

    def close(self) -> None:
        self._inner.close()


class AsyncIdempotentTransport(httpx2.AsyncBaseTransport):
    """The same for `httpx2.AsyncClient`. The journal is asked in a thread: the event loop never waits for it."""

    def __init__(
        self,
        transport: httpx2.AsyncBaseTransport,
        *,
        journal: Journal | None = None,
        retry: Retry | None = None,
        dialect: KeyDialect = DRAFT_07,
        lease: float = LEASE_MS / 1_000,
        on_event: OnEvent = ignore,
    ) -> None:
        check_sender(transport, "handle_async_request", "transport", "async, such as httpx2.AsyncHTTPTransport()")
        self._inner, self._transport = transport, Transport(httpx2, journal, retry, dialect, lease, on_event)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response: httpx2.Response = await self._transport.asend(request, self._inner.handle_async_request)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()
