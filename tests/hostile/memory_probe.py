"""Run in a process of its own: does one hostile thing to a middleware, and prints how much memory that took (KiB)."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults

from semel import Key, Policy
from semel.asgi import IdempotencyMiddleware as AsgiMiddleware
from semel.stores.memory import AsyncMemoryStore
from semel.wsgi import IdempotencyMiddleware as WsgiMiddleware

CALLERS = 10_000
PART_SIZE = 1_048_576
PARTS = 1024
DRIPS = 400_000


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def scope(key: str) -> dict[str, Any]:
    return {
        "type": "http", "method": "POST", "path": "/pay", "raw_path": b"/pay", "query_string": b"",
        "headers": [(b"idempotency-key", key.encode())],
    }  # fmt: skip


async def whole_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"{}", "more_body": False}


class Sent:
    """Counts an answer instead of keeping it."""

    def __init__(self) -> None:
        self.status = 0
        self.size = 0

    async def __call__(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.size += len(message.get("body", b""))


class Watched(AsyncMemoryStore):
    waiting = 0

    async def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        self.waiting += 1
        return await super().wait(key, owner=owner, timeout_ms=timeout_ms)


async def waiters() -> str:
    """Ten thousand repeats wait for one request, which answers in the end."""
    go, effects = asyncio.Event(), 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal effects
        effects += 1
        await go.wait()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"paid"})

    store = Watched()
    policy = Policy(in_flight="wait", wait=600)
    front = AsgiMiddleware(app, store=store, policy=policy, identify=lambda scope: "t", waiters_max=CALLERS - 1)
    sents = [Sent() for _ in range(CALLERS)]
    calls = [asyncio.create_task(front(scope("one"), whole_body, sent)) for sent in sents]
    while store.waiting < CALLERS - 1:
        await asyncio.sleep(0.01)
    late = Sent()
    await front(scope("one"), whole_body, late)  # one too many: it is told to come back, at once
    go.set()
    await asyncio.gather(*calls)
    return f"{effects} {sum(sent.status == 201 for sent in sents)} {late.status}"


async def streamed() -> str:
    """An answer of 1 GiB, and its repeat."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(PARTS):
            await send({"type": "http.response.body", "body": bytes(PART_SIZE), "more_body": True})
        await send({"type": "http.response.body"})

    front = AsgiMiddleware(app, store="memory://", identify=lambda scope: "t")
    first, again = Sent(), Sent()
    await front(scope("one"), whole_body, first)
    await front(scope("one"), whole_body, again)
    return f"{first.status} {first.size} {again.status}"


def streamed_by_wsgi() -> str:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return (bytes(PART_SIZE) for _ in range(PARTS))

    front = WsgiMiddleware(app, store="memory://", identify=lambda environ: "t")

    def ask() -> tuple[str, int]:
        started: list[str] = []
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/pay", "HTTP_IDEMPOTENCY_KEY": "one"}
        setup_testing_defaults(environ)

        def start_response(status: str, headers: object, exc_info: object = None) -> Any:
            started.append(status[:3])

        parts: Any = front(environ, start_response)
        size = sum(len(part) for part in parts)
        if hasattr(parts, "close"):
            parts.close()
        return started[-1], size

    (first, size), (again, _) = ask(), ask()
    return f"{first} {size} {again}"


async def dripping() -> str:
    """A body of two-byte parts that never ends, and one of empty parts."""
    front = AsgiMiddleware(_never, store="memory://", identify=lambda scope: "t")
    sent = Sent()
    left = iter(range(10 * DRIPS))

    async def two_bytes() -> dict[str, Any]:
        return {"type": "http.request", "body": b"%02d" % (next(left) % 100), "more_body": True}

    await front(scope("one"), two_bytes, sent)
    empties: Iterator[int] = iter(range(DRIPS))

    async def nothing() -> dict[str, Any]:
        done = next(empties, None) is None
        return {"type": "http.disconnect"} if done else {"type": "http.request", "body": b"", "more_body": True}

    await front(scope("two"), nothing, Sent())
    return str(sent.status)


async def _never(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nothing may run")


def main() -> None:
    before = peak_kib()
    match sys.argv[1]:
        case "waiters":
            said = asyncio.run(waiters())
        case "streamed":
            said = asyncio.run(streamed())
        case "streamed_by_wsgi":
            said = streamed_by_wsgi()
        case _:
            said = asyncio.run(dripping())
    print(peak_kib() - before, said)


if __name__ == "__main__":
    main()
