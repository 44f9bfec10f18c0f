"""The timeline as server-sent events. A browser that lost its connection goes on where it was (`Last-Event-ID`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from semel.asgi.types import Receive, Scope, Send
from semel.demo.messages import header
from semel.demo.timeline import ALL, Timeline

POLL_S = 0.05
RECONNECT_MS = 100
HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


async def stream(
    timeline: Timeline, account: str, scope: Scope, receive: Receive, send: Send, *, stopping: Callable[[], bool]
) -> None:
    """Send what happens to the keys of `account`, until the browser leaves or the service stops."""
    given, end = header(scope, b"last-event-id"), timeline.end()
    position = int(given) if given.isascii() and given.isdecimal() and int(given) <= end else end
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    # The first event names the position, so that nothing is missed if the worker dies before there is another.
    text = f"retry: {RECONNECT_MS}\nid: {position}\nevent: begin\ndata: {{}}\n\n"
    gone = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        while not gone.done() and not stopping():
            if text:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            text = ""
            found, position = timeline.after(position)
            for happening in found:
                if happening.account in (account, ALL):
                    text += f"id: {position}\ndata: {msgspec.json.encode(happening).decode()}\n\n"
            if not found:
                await asyncio.wait({gone}, timeout=POLL_S)
    finally:
        gone.cancel()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
