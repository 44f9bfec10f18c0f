"""A shop that semel protects, on a real server. Effects are counted where they happen."""

import socket
import threading
from asyncio import to_thread
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from semel import Policy
from semel.asgi import IdempotencyMiddleware
from waiting import until


class ProtectedShop:
    """What the shop has done, and what happens to its next answers on their way out."""

    def __init__(self) -> None:
        self.effects: Counter[bytes] = Counter()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.lost_answers: list[int] = []
        """The statuses that callers get in the place of the next answers, as from a proxy that lost them."""
        self.url = ""

    async def pay(self, request: Request) -> Response:
        body = await request.body()
        if b"declined" in body:
            return JSONResponse({"error": {"type": "card_error", "code": "card_declined", "message": "No."}}, 402)
        self.effects[body] += 1
        if b"slow" in body:
            await to_thread(self.may_answer.wait, 20)
        if b"boom" in body:
            raise RuntimeError("after it took effect")
        return JSONResponse({"id": f"ch_{sum(self.effects.values())}", "object": "charge"}, 200)


@contextmanager
def protecting(policy: Policy, **settings: Any) -> Iterator[ProtectedShop]:
    """Serve the shop on a free port."""
    shop = ProtectedShop()
    routes = [Route("/v1/charges", shop.pay, methods=["POST"])]
    protected = IdempotencyMiddleware(
        Starlette(routes=routes), store="memory://", identify=lambda scope: "me", policy=policy, **settings
    )

    async def lossy(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not shop.lost_answers:
            return await protected(scope, receive, send)
        status = shop.lost_answers.pop(0)

        async def lose(message: Any) -> None:
            """The answer is lost here."""

        await protected(scope, receive, lose)
        await Response("bad gateway", status)(scope, receive, send)

    with serving_asgi(lossy) as shop.url:
        try:
            yield shop
        finally:
            shop.may_answer.set()


@contextmanager
def serving_asgi(app: Any) -> Iterator[str]:
    """Serve an application on a free port; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        until(lambda: server.started, "uvicorn did not start")
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
