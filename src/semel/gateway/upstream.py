"""One request to the upstream, sent at most once: what came back, or whether it was sent at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientHandlerType,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    TCPConnector,
)
from multidict import CIMultiDict
from yarl import URL

from semel.gateway.headers import Pair
from semel.gateway.settings import GatewaySettings

CONNECTIONS_MAX = 1_000
HEAD_MAX = 65_536
NOT_OURS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that the library would add to a request without them."""


class NotSent(Exception):
    """The gateway could not connect: the upstream has seen nothing of the request."""


class NotText(Exception):
    """A header is not UTF-8, and the HTTP library can send no other text. Nothing was sent."""


class Cut(Exception):
    """The request was sent, at least in part, and its answer did not come, or not whole."""


class Upstream:
    """The connections of one event loop to the one upstream there is."""

    def __init__(self, settings: GatewaySettings, connections_max: int = CONNECTIONS_MAX) -> None:
        self._settings = settings
        self._connections_max = connections_max
        self._session: ClientSession | None = None

    async def send(
        self, method: str, target: str, headers: Sequence[Pair], body: bytes | AsyncIterator[bytes] | None
    ) -> ClientResponse:
        """Send it once. `target` is the path and query as received; nothing is quoted, followed or unpacked."""
        try:
            texts = CIMultiDict((name.decode(), value.decode()) for name, value in headers)
        except UnicodeDecodeError as error:
            raise NotText(str(error)) from error
        url = URL(f"{self._settings.base}{target}", encoded=True)
        request = partial(self._open_session().request, method, url, headers=texts, allow_redirects=False)
        try:
            if body is None or isinstance(body, bytes):
                return await request(data=body)
            async with asyncio.timeout(None) as bound:
                return await request(data=self._bound_parts(body, bound))
        except (ClientConnectorError, ConnectionTimeoutError) as error:
            raise NotSent(str(error)) from error
        except (ClientError, TimeoutError, OSError) as error:
            raise Cut(_describe(error)) from error

    async def _bound_parts(self, parts: AsyncIterator[bytes], bound: asyncio.Timeout) -> AsyncIterator[bytes]:
        """The parts of a body, each of which the upstream must take in time: the library bounds only its reading."""
        loop = asyncio.get_running_loop()
        async for part in parts:
            with suppress(RuntimeError):  # the answer has begun before the request ended: its parts have a bound
                bound.reschedule(loop.time() + self._settings.timeout_s)
            yield part
            with suppress(RuntimeError):  # now the gateway waits for the caller
                bound.reschedule(None)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> ClientSession:
        if self._session is None:  # not in the constructor: a session belongs to the event loop that uses it
            settings = self._settings
            self._session = ClientSession(
                connector=TCPConnector(limit=self._connections_max, force_close=True)
                if not settings.keepalive_s
                else TCPConnector(limit=self._connections_max, keepalive_timeout=settings.keepalive_s),
                timeout=ClientTimeout(
                    total=None, connect=settings.connect_timeout_s, sock_read=settings.timeout_s, ceil_threshold=60
                ),
                cookie_jar=DummyCookieJar(),
                skip_auto_headers=NOT_OURS,
                auto_decompress=False,
                max_line_size=HEAD_MAX,
                max_field_size=HEAD_MAX,
                middlewares=(_send_once,),
            )
        return self._session


async def read_whole(response: ClientResponse) -> bytes:
    """The whole body."""
    try:
        return await response.read()
    except (ClientError, TimeoutError, OSError) as error:
        raise Cut(_describe(error)) from error


async def read_chunks(response: ClientResponse) -> AsyncIterator[bytes]:
    """The body, part by part as it arrives."""
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (ClientError, TimeoutError, OSError) as error:
        raise Cut(_describe(error)) from error


async def _send_once(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Keep the session from sending again: after a lost connection it repeats what HTTP calls idempotent, PUT too."""
    try:
        return await handler(request)
    except (ClientConnectorError, ConnectionTimeoutError):
        raise
    except (ClientError, OSError) as error:
        raise Cut(_describe(error)) from error


def _describe(error: Exception) -> str:
    return str(error) or ("it did not take the request in time" if isinstance(error, TimeoutError) else repr(error))
