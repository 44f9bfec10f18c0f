"""One way to send a request through each of the adapters, so that one list of tests holds for all of them."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx
import httpx2
import requests
import urllib3
from requests.adapters import HTTPAdapter

from semel.client import CallReport, Intent, report_of
from semel.client import aiohttp as semel_aiohttp
from semel.client import httpx as semel_httpx
from semel.client import httpx2 as semel_httpx2
from semel.client import requests as semel_requests
from semel.client import urllib3 as semel_urllib3


@dataclass(frozen=True)
class Received:
    status: int
    body: bytes
    headers: Mapping[str, str]
    report: CallReport


class Front(ABC):
    """A client with the adapter of its library. `lost` is what the library raises when a connection fails."""

    lost: type[Exception]
    timeout = 20.0
    """For how many seconds it waits for the next bytes of an answer."""

    @abstractmethod
    def __init__(self, **options: Any) -> None: ...

    @abstractmethod
    def send(self, method: str, url: str, body: Any, headers: dict[str, str], intent: Intent | None) -> Received: ...

    @abstractmethod
    def close(self) -> None: ...

    def post(
        self,
        url: str,
        body: Any = b"{}",
        headers: Mapping[str, str] = {},
        intent: Intent | None = None,
    ) -> Received:
        return self.send("POST", url, body, {"Content-Type": "application/json", **headers}, intent)

    def put(self, url: str) -> Received:
        return self.send("PUT", url, b"{}", {}, None)


class HttpxFront(Front):
    lost: type[Exception] = httpx.TransportError
    library: Any = httpx
    transports: Any = semel_httpx

    def __init__(self, **options: Any) -> None:
        transport = self.transports.IdempotentTransport(self.library.HTTPTransport(), **options)
        self.client = self.library.Client(transport=transport, follow_redirects=True)

    def send(self, method: str, url: str, body: Any, headers: dict[str, str], intent: Intent | None) -> Received:
        extensions = {"semel": intent} if intent else {}
        response = self.client.request(
            method, url, content=body, headers=headers, extensions=extensions, timeout=self.timeout
        )
        return Received(response.status_code, response.content, response.headers, report_of(response))

    def close(self) -> None:
        self.client.close()


class Httpx2Front(HttpxFront):
    lost = httpx2.TransportError
    library = httpx2
    transports = semel_httpx2


class AsyncFront(Front):
    def __init__(self, **options: Any) -> None:
        self.runner = asyncio.Runner()
        self.runner.run(self.open(**options))

    @abstractmethod
    async def open(self, **options: Any) -> None: ...

    @abstractmethod
    async def asend(
        self, method: str, url: str, body: Any, headers: dict[str, str], intent: Intent | None
    ) -> Received: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    def send(self, method: str, url: str, body: Any, headers: dict[str, str], intent: Intent | None) -> Received:
        return self.runner.run(self.asend(method, url, body, headers, intent), context=copy_context())

    def close(self) -> None:
        self.runner.run(self.aclose())
        self.runner.close()


class AsyncHttpxFront(AsyncFront):
    lost: type[Exception] = httpx.TransportError
    library: Any = httpx
    transports: Any = semel_httpx

    async def open(self, **options: Any) -> None:
        transport = self.transports.AsyncIdempotentTransport(self.library.AsyncHTTPTransport(), **options)
        self.client = self.library.AsyncClient(transport=transport, follow_redirects=True)

    async def asend(self, method: str, url: str, body: Any, headers: dict[str, str], intent: Intent | None) -> Received:
        extensions = {"semel": intent} if intent else {}
        response = await self.client.request(
            method, url, content=body, headers=headers, extensions=extensions, timeout=self.timeout
        )
        return Received(response.status_code, response.content, response.headers, report_of(response))

    async def aclose(self) -> None:
        await self.client.aclose()


class AsyncHttpx2Front(AsyncHttpxFront):
    lost = httpx2.TransportError
    library = httpx2
    transports = semel_httpx2


class RequestsFront(Front):
    lost = requests.ConnectionError

    def __init__(self, **options: Any) -> None:
        self.session = requests.Session()
        for prefix in ("http://", "https://"):
            self.session.mount(prefix, semel_requests.IdempotentAdapter(HTTPAdapter(), **options))

    def send(self, method: str, url: str, body: Any, headers: dict[str, str], intent: Intent | None) -> Received:
        marked = headers | (intent.headers if intent else {})
        response = self.session.request(method, url, data=body, headers=marked, timeout=self.timeout)
        return Received(response.status_code, response.content, response.headers, report_of(response))

    def close(self) -> None:
        self.session.close()


class Urllib3Front(Front):
    lost = urllib3.exceptions.HTTPError

    def __init__(self, **options: Any) -> None:
        self.pool = semel_urllib3.IdempotentPoolManager(**options)

    def send(self, method: str, url: str, body: Any, headers: dict[str, str], intent: Intent | None) -> Received:
        marked = headers | (intent.headers if intent else {})
        response = self.pool.request(method, url, body=body, headers=marked, timeout=self.timeout)
        return Received(response.status, response.data, response.headers, report_of(response))

    def close(self) -> None:
        self.pool.clear()


class AiohttpFront(AsyncFront):
    lost = aiohttp.ClientError

    async def open(self, **options: Any) -> None:
        self.session = aiohttp.ClientSession(middlewares=[semel_aiohttp.IdempotentMiddleware(**options)])

    async def asend(self, method: str, url: str, body: Any, headers: dict[str, str], intent: Intent | None) -> Received:
        marked = headers | (intent.headers if intent else {})
        timeout = aiohttp.ClientTimeout(sock_read=self.timeout)
        async with self.session.request(method, url, data=body, headers=marked, timeout=timeout) as response:
            return Received(response.status, await response.read(), response.headers, report_of(response))

    async def aclose(self) -> None:
        await self.session.close()


Open = Callable[..., Front]
FRONTS: dict[str, type[Front]] = {
    "httpx": HttpxFront,
    "httpx-async": AsyncHttpxFront,
    "httpx2": Httpx2Front,
    "httpx2-async": AsyncHttpx2Front,
    "requests": RequestsFront,
    "aiohttp": AiohttpFront,
    "urllib3": Urllib3Front,
}
