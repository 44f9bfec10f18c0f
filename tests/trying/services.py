"""Services of all kinds: the same shop, protected well, badly, by others, and not at all."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from semel.asgi import IdempotencyMiddleware

CALLERS = ("Bearer alice-4711", "Bearer bob-0815")


@dataclass
class Shop:
    """Takes orders from two callers. `ledger` is what really happened."""

    numbered: bool = True
    """Whether an answer tells which order it is about."""
    ledger: list[str] = field(default_factory=list)

    async def order(self, request: Request) -> Response:
        if request.headers.get("authorization") not in CALLERS:
            return JSONResponse({"error": "who are you?"}, status_code=401)
        try:
            sku = (await request.json())["sku"]
        except (ValueError, KeyError):
            return JSONResponse({"error": "which sku?"}, status_code=400)
        await asyncio.sleep(0.03)  # so that requests sent at once meet each other
        self.ledger.append(sku)
        number = len(self.ledger) if self.numbered else 0
        location = {"Location": f"/orders/{number}"}
        return JSONResponse({"id": number, "sku": sku}, status_code=201, headers=location)

    async def count(self, request: Request) -> Response:
        return JSONResponse({"count": len(self.ledger)})

    def app(self) -> Any:
        return Starlette(
            routes=[Route("/orders", self.order, methods=["POST"]), Route("/count", self.count, methods=["GET"])]
        )


def bare(shop: Shop) -> Any:
    return shop.app()


def by_semel(shop: Shop) -> Any:
    protected = IdempotencyMiddleware(
        shop.app(), store="memory://", identify=lambda scope: dict(scope["headers"])[b"authorization"].decode()
    )

    async def authorised(scope: Any, receive: Any, send: Any) -> None:
        caller = dict(scope["headers"]).get(b"authorization", b"").decode()
        known = scope["method"] == "GET" or caller in CALLERS
        await (protected if known else JSONResponse({}, status_code=401))(scope, receive, send)

    return authorised


class Fake:
    """Gives the first answer again, and runs the work all the same."""

    def __init__(self, shop: Shop) -> None:
        self._app = shop.app()
        self._answers: dict[bytes, list[Any]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        key = dict(scope.get("headers", ())).get(b"idempotency-key")
        if not key:
            await self._app(scope, receive, send)
            return
        messages: list[Any] = []

        async def keep(message: Any) -> None:
            messages.append(message)

        await self._app(scope, receive, keep)
        for message in self._answers.setdefault(key, messages):
            await send(message)


def by_asgi_idempotency_header(shop: Shop) -> Any:
    from idempotency_header_middleware import IdempotencyHeaderMiddleware
    from idempotency_header_middleware.backends.memory import MemoryBackend

    return IdempotencyHeaderMiddleware(shop.app(), backend=MemoryBackend())


def by_fastapi_idempotency(shop: Shop) -> Any:
    from fastapi_idempotency import IdempotencyMiddleware as Theirs

    return Theirs(shop.app())


def by_fastapi_idempotency_key(shop: Shop) -> Any:
    from fastapi_idempotency_key import IdempotencyMiddleware as Theirs

    return Theirs(shop.app())


@contextmanager
def served(shop: Shop, protect: Callable[[Shop], Any]) -> Iterator[str]:
    """Serve it on a free port; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(protect(shop), log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < deadline, "uvicorn did not start"
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)


def order(sku: object = "A-1") -> str:
    return json.dumps({"sku": sku})
