"""The application that everybody protects, bare, with semel, and with each peer: trivial JSON on Starlette.

It counts what it does. A contender whose replays run the handler is found out, not praised for its speed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks import peers
from semel.asgi import IdempotencyMiddleware

App = Callable[
    [MutableMapping[str, Any], Callable[..., Awaitable[Any]], Callable[..., Awaitable[Any]]], Awaitable[None]
]
BARE, SEMEL, AT_ONCE = "bare app", "semel", "answers at once"


class Shop:
    """`POST /pay` has an effect, `POST /hold` keeps its key in progress, `GET /effects` says how many there were."""

    def __init__(self) -> None:
        self.effects = 0
        self.held: asyncio.Event | None = None

    async def pay(self, request: Request) -> Response:
        amount = (await request.json())["amount"]
        self.effects += 1
        return JSONResponse({"payment": self.effects, "by": os.getpid(), "amount": amount})

    async def hold(self, request: Request) -> Response:
        self.held = asyncio.Event()
        await self.held.wait()
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


def build(who: str, store: str, url: str) -> App:
    """The application as `who` protects it, with its records at `url`."""
    shop = Shop()
    if who == BARE:
        return shop.app()
    if who == AT_ONCE:
        return at_once(shop)
    if who == SEMEL:
        return IdempotencyMiddleware(shop.app(), store=url, identify=lambda scope: "shop-1")
    peer: App = peers.PEERS[who, store](shop, url)
    return peer


def from_environment() -> App:
    """For `uvicorn --factory`."""
    return build(os.environ["BENCH_WHO"], os.environ["BENCH_STORE"], os.environ["BENCH_URL"])
