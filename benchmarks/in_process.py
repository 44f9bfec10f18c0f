"""In one process, with a `receive` and a `send` that cost nothing: what a request costs over the bare application.

The application is the least that ASGI or WSGI allows, so that differences of microseconds can be seen.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from io import BytesIO
from typing import Any
from wsgiref.util import setup_testing_defaults

import uvloop

from benchmarks.apps import BARE, SEMEL, App
from benchmarks.places import STORES, Places
from benchmarks.results import MICROSECONDS, Found
from benchmarks.rounds import aalternate, alternate, measured
from benchmarks.sizes import Size
from semel.asgi import IdempotencyMiddleware
from semel.wsgi import IdempotencyMiddleware as WsgiMiddleware

BODY, ANSWER = b'{"amount": 10}', b'{"payment": 1, "amount": 10}'
START = {"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json")]}
END = {"type": "http.response.body", "body": ANSWER}
TOGETHER = 64
KNOWN, HELD = f"known-{secrets.token_hex(8)}", f"held-{secrets.token_hex(8)}"


async def least(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send(START)
    await send(END)


async def post(app: App, name: str | None, *, path: str = "/pay") -> int:
    """One request, as a server would bring it. Says what status it got."""
    headers = [(b"host", b"bench"), (b"content-type", b"application/json"), (b"content-length", b"14")]
    if name is not None:
        headers.append((b"idempotency-key", name.encode()))
    status = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await app(scope | {"asgi": {"version": "3.0"}, "root_path": "", "raw_path": path.encode()}, receive, send)
    return status


class Case:
    """Requests of one kind to one application, one by one or many at once."""

    def __init__(self, app: App, name: Callable[[], str | None], calls: int, together: int, expected: int) -> None:
        self.app, self.name, self.calls, self.together, self.expected = app, name, calls, together, expected

    async def __call__(self) -> float:
        """Microseconds for each call."""
        started = time.perf_counter()
        each = max(1, self.calls // self.together)
        if self.together == 1:
            await self._some(each)
        else:
            await asyncio.gather(*(self._some(each) for _ in range(self.together)))
        return (time.perf_counter() - started) / (each * self.together) * 1e6

    async def _some(self, number: int) -> None:
        for _ in range(number):
            status = await post(self.app, self.name())
            assert status == self.expected, status


def measure(size: Size, places: Places) -> Iterator[Found]:
    yield from uvloop.run(asgi(size, places))
    yield from wsgi(size)


async def asgi(size: Size, places: Places) -> list[Found]:
    found: list[Found] = []
    async with AsyncExitStack() as stack:
        apps = {
            store: await stack.enter_async_context(protected(places.url(store, fresh="in-process"))) for store in STORES
        }
        for together in (1, TOGETHER):
            # A lone caller of a durable store waits for its disk: fewer calls say the same.
            cells: dict[tuple[str, str, str], Callable[[], Awaitable[float]]] = {
                ("no key", BARE, ""): Case(least, lambda: None, size.calls, together, 201),
                ("no key", SEMEL, "memory"): Case(apps["memory"], lambda: None, size.calls, together, 201),
            }
            for store, app in apps.items():
                calls = size.calls if store == "memory" or together > 1 else size.calls // 8
                cells["first", SEMEL, store] = Case(app, lambda: secrets.token_hex(16), calls, together, 201)
                cells["replay", SEMEL, store] = Case(app, lambda: KNOWN, calls, together, 201)
                cells["in flight", SEMEL, store] = Case(app, lambda: HELD, calls, together, 409)
            for at, values in (await aalternate(cells, size.rounds)).items():
                found.append(measured(*at, together, MICROSECONDS, values))
    return found


@asynccontextmanager
async def protected(url: str) -> AsyncIterator[App]:
    """The least application behind the middleware, with one key answered and another one in progress."""
    entered, release = asyncio.Event(), asyncio.Event()

    async def holding(scope: Any, receive: Any, send: Any) -> None:
        if (b"idempotency-key", HELD.encode()) in scope["headers"]:
            entered.set()
            await release.wait()
        await least(scope, receive, send)

    middleware = IdempotencyMiddleware(holding, store=url, identify=lambda scope: "shop-1")
    await post(middleware, KNOWN)
    first = asyncio.create_task(post(middleware, HELD))
    await entered.wait()
    middleware.app = least
    yield middleware
    release.set()
    await first
    await middleware.close()


def wsgi(size: Size) -> Iterator[Found]:
    """The same for threads, on the memory store."""

    def least_wsgi(environ: Any, start_response: Any) -> list[bytes]:
        environ["wsgi.input"].read(len(BODY))
        start_response("201 Created", [("Content-Type", "application/json")])
        return [ANSWER]

    protected_app = WsgiMiddleware(least_wsgi, store="memory://", identify=lambda environ: "shop-1")

    def case(app: Any, name: Callable[[], str | None]) -> Callable[[], float]:
        def run() -> float:
            started = time.perf_counter()
            for _ in range(size.calls):
                call_wsgi(app, name())
            return (time.perf_counter() - started) / size.calls * 1e6

        return run

    cells = {
        ("WSGI, no key", BARE, ""): case(least_wsgi, lambda: None),
        ("WSGI, no key", SEMEL, "memory"): case(protected_app, lambda: None),
        ("WSGI, first", SEMEL, "memory"): case(protected_app, lambda: secrets.token_hex(16)),
        ("WSGI, replay", SEMEL, "memory"): case(protected_app, lambda: "known"),
    }
    for at, values in alternate(cells, size.rounds).items():
        yield measured(*at, 1, MICROSECONDS, values)


def call_wsgi(app: Any, name: str | None) -> None:
    environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "PATH_INFO": "/pay", "CONTENT_LENGTH": str(len(BODY))}
    setup_testing_defaults(environ)
    environ["wsgi.input"] = BytesIO(BODY)
    if name is not None:
        environ["HTTP_IDEMPOTENCY_KEY"] = name
    statuses: list[str] = []
    answer = app(environ, lambda status, headers, exc_info=None: statuses.append(status))
    assert b"".join(answer) == ANSWER, statuses
    if hasattr(answer, "close"):
        answer.close()
