"""The least that could be called protection: answers in a dict, the handler in a task that outlives its caller.

No lease, no renewal, no fence, no limits, no tenants, no store that could fail, no second process, no events, no
policy. Whoever does less does not do it. It says how much of what a request costs is the protection of `semel`, and
how much is Python's. Without even the task, who cancels a caller cancels the work: that says what the task costs.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from benchmarks.apps import Shop

DICT_AND_TASK, DICT_ALONE = "a dict and a task", "a dict alone"
LEAST = (DICT_AND_TASK, DICT_ALONE)
RUNNING = b""
encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode


class Least:
    def __init__(self, app: Any, *, alone: bool) -> None:
        self.app, self.alone = app, alone
        self.answers: dict[tuple[str, bytes], tuple[bytes, bytes]] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        name = dict(scope.get("headers", ())).get(b"idempotency-key")
        if name is None:
            await self.app(scope, receive, send)
            return
        message = await receive()
        body, key = message["body"], (scope["path"], name)
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        fingerprint = hashlib.sha256(body).digest()
        known = self.answers.get(key)
        if known is None:
            self.answers[key] = fingerprint, RUNNING
            run = Run(self, key, fingerprint, body, send)
            await (self.app(scope, run.receive, run.send) if self.alone else run.outlived(scope))
        elif known[0] != fingerprint or known[1] is RUNNING:
            await respond(send, 422 if known[1] else 409, [], b"")
        else:
            await respond(send, *decode(known[1]))


class Run:
    def __init__(self, front: Least, key: tuple[str, bytes], fingerprint: bytes, body: bytes, send: Any) -> None:
        self.front, self.key, self.fingerprint, self.body, self.wire = front, key, fingerprint, body, send
        self.start: Any = {}
        self.chunks: list[bytes] = []

    async def outlived(self, scope: Any) -> None:
        loop = asyncio.get_running_loop()
        self.over = loop.create_future()
        task = loop.create_task(self.front.app(scope, self.receive, self.send))
        self.front.tasks.add(task)
        task.add_done_callback(self.done)
        await self.over

    def done(self, task: asyncio.Task[None]) -> None:
        self.front.tasks.discard(task)
        self.over.set_result(None)

    async def receive(self) -> Any:
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            return
        self.chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            status, headers, body = self.start["status"], self.start["headers"], b"".join(self.chunks)
            self.front.answers[self.key] = self.fingerprint, encode((status, headers, body))
            await respond(self.wire, status, headers, body)


async def respond(send: Any, status: int, headers: list[Any], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def build(shop: Shop, url: str, *, alone: bool = False) -> Any:
    return Least(shop.app(), alone=alone)
