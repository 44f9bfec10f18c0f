"""How often a request puts something off to a later pass of the event loop: new tasks, woken waiters, callbacks.

The bounds are what it is today. A change that needs fewer passes lowers them; one that needs more says why here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import MutableMapping
from typing import Any

import pytest

from costs.counting import CountingLoop
from semel.asgi import IdempotencyMiddleware
from semel.http import marks

AT_ONCE = sys.version_info >= (3, 12)
"""Work begins in the step of its caller, and a later pass of the loop is needed only if it has to wait."""
# Each call on a store is put off: in between, the other tasks do the same step, and that is quicker than all steps of
# each in turns.
BOUNDS = {"no key": 0, "first": 5 if AT_ONCE else 6, "replay": 1}


async def least(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"{}", "more_body": False}


async def send(message: MutableMapping[str, Any]) -> None:
    """The client takes everything."""


def scope(key: str | None) -> dict[str, Any]:
    headers = [(b"host", b"test"), (b"content-type", b"application/json")]
    if key is not None:
        headers.append((b"idempotency-key", key.encode()))
    return {"type": "http", "method": "POST", "path": "/pay", "query_string": b"", "headers": headers}


async def counted(case: str) -> int:
    app = IdempotencyMiddleware(least, store="memory://", identify=lambda scope: "shop")
    for key in (None, "known", "known", "other"):  # whatever is made once is made now
        await app(scope(key), receive, send)
    key = {"no key": None, "first": "new", "replay": "known"}[case]
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountingLoop)
    await asyncio.sleep(0)
    before = loop.put_off
    await app(scope(key), receive, send)
    found = loop.put_off - before
    await app.close()
    return found


@pytest.fixture(autouse=True)
def no_endpoint_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test may have marked one; then every request asks its router."""
    monkeypatch.setattr(marks, "used", False)


@pytest.mark.parametrize("case", BOUNDS)
def test_a_request_puts_no_more_off_than_it_did(case: str) -> None:
    loop = CountingLoop()
    try:
        put_off = loop.run_until_complete(counted(case))
    finally:
        loop.close()
    assert put_off <= BOUNDS[case], f"{case}: {put_off} things were put off to a later pass of the loop"


def test_the_same_request_costs_the_same_every_time() -> None:
    """Or the bounds above would be a matter of luck."""
    found = []
    for _ in range(3):
        loop = CountingLoop()
        found.append(loop.run_until_complete(counted("first")))
        loop.close()
    assert len(set(found)) == 1, found
