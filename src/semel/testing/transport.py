"""httpx transports that behave like a bad network: every unsafe request arrives twice, or its first answer is lost.

    client = httpx.Client(transport=DuplicatingTransport(httpx.HTTPTransport()))

Put one under the clients of your tests, and an endpoint that is not idempotent shows itself.
"""

from __future__ import annotations

import httpx

from semel.testing.duplicates import SAFE


class DuplicatingTransport(httpx.BaseTransport):
    """Sends every unsafe request twice. The caller gets the second answer, as if the first had been lost."""

    def __init__(self, within: httpx.BaseTransport) -> None:
        self._within = within
        self.duplicates = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method not in SAFE:
            request.read()  # a body that comes in parts could be sent only once
            self._within.handle_request(request).close()
            self.duplicates += 1
        return self._within.handle_request(request)

    def close(self) -> None:
        self._within.close()


class LosingTransport(httpx.BaseTransport):
    """Loses the first answer to every unsafe request: the service has acted, its caller sees `httpx.ReadError`.

    A request is known by its bytes and its headers, so a retry gets through, and the caller's retrying is tested too.
    """

    def __init__(self, within: httpx.BaseTransport) -> None:
        self._within = within
        self._seen: set[object] = set()
        self.lost = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method in SAFE:
            return self._within.handle_request(request)
        known = _known_by(request, request.read())
        response = self._within.handle_request(request)
        if known in self._seen:
            return response
        self._seen.add(known)
        self.lost += 1
        response.close()
        raise _lost(request)

    def close(self) -> None:
        self._within.close()


class AsyncDuplicatingTransport(httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`."""

    def __init__(self, within: httpx.AsyncBaseTransport) -> None:
        self._within = within
        self.duplicates = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method not in SAFE:
            await request.aread()
            await (await self._within.handle_async_request(request)).aclose()
            self.duplicates += 1
        return await self._within.handle_async_request(request)

    async def aclose(self) -> None:
        await self._within.aclose()


class AsyncLosingTransport(httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`."""

    def __init__(self, within: httpx.AsyncBaseTransport) -> None:
        self._within = within
        self._seen: set[object] = set()
        self.lost = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method in SAFE:
            return await self._within.handle_async_request(request)
        known = _known_by(request, await request.aread())
        response = await self._within.handle_async_request(request)
        if known in self._seen:
            return response
        self._seen.add(known)
        self.lost += 1
        await response.aclose()
        raise _lost(request)

    async def aclose(self) -> None:
        await self._within.aclose()


def _known_by(request: httpx.Request, body: bytes) -> object:
    return request.method, str(request.url), tuple(request.headers.raw), body


def _lost(request: httpx.Request) -> httpx.ReadError:
    return httpx.ReadError("the answer was lost, on purpose (semel.testing)", request=request)
