"""Keeps the body that a middleware in front of ours reads, and gives it to our middleware again.

Starlette gives a body again by itself. Litestar keeps it in the state of its scope, where only its own requests look;
`receive` would wait for ever.
"""

from __future__ import annotations

from enum import Enum

from semel.asgi.types import Message, Receive, Scope

KEPT = "semel.body"
"""The name under which the scope has the `KeptBody` of its request."""


class BodyStage(Enum):
    """How far the body is read."""

    UNREAD = "by no middleware so far"
    BEGUN = "in part, in front of ours"
    WHOLE = "to its end, or past the limit, in front of ours"
    OURS = "ours reads it, or has"


class KeptBody:
    """The outermost `receive`. It keeps the messages read through it, until they have more than `size_max` bytes."""

    __slots__ = ("_body", "_receive", "_size_max", "_stage")

    def __init__(self, receive: Receive, size_max: int) -> None:
        self._receive = receive
        self._size_max = size_max
        self._body = bytearray()
        self._stage = BodyStage.UNREAD

    async def receive(self) -> Message:
        """For the middlewares in front of ours, and later for ours."""
        message = await self._receive()
        if self._stage in (BodyStage.UNREAD, BodyStage.BEGUN) and message["type"] == "http.request":
            self._body += message.get("body", b"")
            # A body that is too large is refused, so its rest is not needed.
            whole = len(self._body) > self._size_max or not message.get("more_body", False)
            self._stage = BodyStage.WHOLE if whole else BodyStage.BEGUN
        return message

    def again(self, receive: Receive) -> Receive:
        """For our middleware: what was read before, then the messages of `receive`. Nothing is kept from here on."""
        stage, self._stage = self._stage, BodyStage.OURS
        if stage is BodyStage.UNREAD:
            return receive
        body: bytes | None = bytes(self._body)
        self._body.clear()

        async def replayed() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            read, body = body, None
            return {"type": "http.request", "body": read, "more_body": stage is BodyStage.BEGUN}

        return replayed


def unread(scope: Scope, receive: Receive) -> Receive:
    """A `receive` that gives the whole body of the request, even if another middleware has read it before."""
    kept: KeptBody | None = scope.get(KEPT)
    return receive if kept is None else kept.again(receive)
