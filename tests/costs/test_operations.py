"""What a request costs in the process itself, counted: functions of semel, and passes of the event loop.

The bounds are what it is today. Who makes it cheaper lowers them; who makes it dearer has to say why here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import MutableMapping
from typing import Any

import pytest

from costs.counting import CountingLoop, calls_of_semel
from semel.asgi import IdempotencyMiddleware
from semel.http import marks

AT_ONCE = sys.version_info >= (3, 12)
"""Work begins in the step of its caller, and a later pass of the loop is needed only if it has to wait."""
# Functions entered or resumed, and what was put off to a later pass of the loop. Each call on a store is: in between,
# the other tasks do the same step, and that is quicker than all steps of each in turns.
# An answer is given outside of its operation: two functions, so that the next request of the connection has none.
# The memory store goes by a clock that does not jump with the machine's: one function for each call on it.
# The application's context variables are taken over into its caller's context: one function.
BOUNDS = {
    "no key": (4, 0),
    "first": (71, 5) if AT_ONCE else (72, 6),
    "replay": (26, 1),
}


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


async def counted(case: str) -> tuple[int, int]:
    app = IdempotencyMiddleware(least, store="memory://", identify=lambda scope: "shop")
    for key in (None, "known", "known", "other"):  # whatever is made once is made now
        await app(scope(key), receive, send)
    key = {"no key": None, "first": "new", "replay": "known"}[case]
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountingLoop)
    await asyncio.sleep(0)
    before = loop.put_off
    with calls_of_semel() as calls:
        await app(scope(key), receive, send)
        found = calls(), loop.put_off - before
    await app.close()
    return found


@pytest.fixture(autouse=True)
def no_endpoint_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test may have marked one; then every request asks its router."""
    monkeypatch.setattr(marks, "used", False)


@pytest.mark.parametrize("case", BOUNDS)
def test_a_request_costs_no_more_than_it_did(case: str) -> None:
    loop = CountingLoop()
    try:
        calls, put_off = loop.run_until_complete(counted(case))
    finally:
        loop.close()
    calls_most, put_off_most = BOUNDS[case]
    assert calls <= calls_most, f"{case}: {calls} functions were entered or resumed"
    assert put_off <= put_off_most, f"{case}: {put_off} things were put off to a later pass of the loop"


def test_the_same_request_costs_the_same_every_time() -> None:
    """Or the bounds above would be a matter of luck."""
    found = []
    for _ in range(3):
        loop = CountingLoop()
        found.append(loop.run_until_complete(counted("first")))
        loop.close()
    assert len(set(found)) == 1, found
