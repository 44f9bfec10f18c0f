"""The application that everybody protects, bare, with semel, and with each peer: trivial JSON on Starlette.

It counts what it does. A contender whose replays run the handler is found out, not praised for its speed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks import on_django, peers
from semel.asgi import IdempotencyMiddleware

App = Callable[
    [MutableMapping[str, Any], Callable[..., Awaitable[Any]], Callable[..., Awaitable[Any]]], Awaitable[None]
]
BARE, SEMEL, AT_ONCE = "bare app", "semel", "answers at once"
BY_DEFAULT = "semel, no option given"


class Shop:
    """`POST /pay` has an effect, `POST /hold` keeps its key in progress, `GET /effects` says how many there were.

    `GET /let-go` ends what is held.
    """

    def __init__(self) -> None:
        self.effects = 0
        self._counting = threading.Lock()
        self.held: asyncio.Event | None = None

    def charge(self, amount: int) -> dict[str, int]:
        """The effect. Some contenders run it in threads."""
        with self._counting:
            self.effects += 1
            return {"payment": self.effects, "by": os.getpid(), "amount": amount}

    async def pay(self, request: Request) -> Response:
        body = await request.json()
        if "hold" in body:
            await self.hold(request)
        return JSONResponse(self.charge(body["amount"]))

    async def hold(self, request: Request) -> Response:
        self.held = asyncio.Event()
        await self.held.wait()
        self.held = None
        return JSONResponse({})

    async def told(self, request: Request) -> Response:
        if self.held is not None and request.url.path == "/let-go":
            self.held.set()
        return JSONResponse({"effects": self.effects, "held": self.held is not None})

    def app(self, pay: Callable[[Request], Awaitable[Response]] | None = None) -> Starlette:
        return Starlette(
            routes=[
                Route("/pay", pay or self.pay, methods=["POST"]),
                Route("/hold", self.hold, methods=["POST"]),
                Route("/effects", self.told),
                Route("/let-go", self.told),
            ]
        )


def at_once(shop: Shop) -> App:
    """No framework, no routing, always the same answer: nobody who answers through this server can be quicker."""
    app, body = shop.app(), b'{"payment":1,"by":1,"amount":10}'
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]

    async def answer(
        scope: MutableMapping[str, Any], receive: Callable[..., Awaitable[Any]], send: Callable[..., Awaitable[Any]]
    ) -> None:
        if scope["type"] != "http" or scope["path"] != "/pay":
            await app(scope, receive, send)
            return
        await receive()
        shop.effects += 1
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer


def build(who: str, store: str, url: str) -> Any:
    """The application as `who` protects it, with its records at `url`: WSGI on Django, else ASGI."""
    shop = Shop()
    if who in on_django.ON_DJANGO:
        return on_django.build(shop, who, store, url)
    if who == BARE:
        return shop.app()
    if who == AT_ONCE:
        return at_once(shop)
    if who == SEMEL:
        return IdempotencyMiddleware(shop.app(), store=url, identify=lambda scope: "shop-1")
    if who == BY_DEFAULT:
        return IdempotencyMiddleware(shop.app(), store=url)
    return peers.PEERS[who, store](shop, url)


def from_environment() -> Any:
    """For `uvicorn --factory` and `waitress --call`."""
    return build(os.environ["BENCH_WHO"], os.environ["BENCH_STORE"], os.environ["BENCH_URL"])
