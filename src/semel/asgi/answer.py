"""Collects the answer of an application from its messages."""

from __future__ import annotations

import asyncio

from semel.asgi.types import Message
from semel.core import http
from semel.core.http import Response


class CollectedAnswer:
    """Status, headers and body so far. `wait_until_whole` is for a `receive` that hides the caller's departure."""

    __slots__ = ("_chunks", "_is_whole", "_whole", "headers", "size", "status")

    def __init__(self) -> None:
        self.status = self.size = 0
        self.headers: http.Headers = ()
        self._chunks: list[bytes] = []
        self._is_whole = False
        self._whole: asyncio.Event | None = None

    def start(self, message: Message) -> None:
        if self.status:
            raise RuntimeError("the application started its answer twice")
        self.status = message["status"]
        self.headers = tuple([(bytes(name), bytes(value)) for name, value in message.get("headers", ())])

    def add(self, message: Message) -> None:
        if not self.status:
            raise RuntimeError("the application sent a body before the start of its answer")
        self._chunks.append(chunk := message.get("body", b""))
        self.size += len(chunk)

    def response(self) -> Response:
        return Response(self.status, self.headers, b"".join(self._chunks))

    def take_body(self) -> bytes:
        """Hand out the body so far. The rest is not collected."""
        body = b"".join(self._chunks)
        self._chunks.clear()
        return body

    def end(self) -> None:
        """End the answer: nothing that the application sends from here on changes it."""
        self._is_whole = True
        if self._whole is not None:
            self._whole.set()

    async def wait_until_whole(self) -> None:
        if not self._is_whole:
            if self._whole is None:
                self._whole = asyncio.Event()
            await self._whole.wait()
