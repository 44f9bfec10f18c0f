"""`OutcomeUnknown` in any ASGI application: neither completed nor released, and told as what it is."""

import asyncio
import json
import uuid
from typing import Any

import httpx
import pytest

from semel import Key, open_async_store
from semel.asgi import IdempotencyMiddleware
from semel.core.records import State
from semel.errors import OutcomeUnknown
from semel.events import Event, EventKind
from semel.testing.clock import ManualClock


async def reset(receive: Any, send: Any) -> None:
    raise OutcomeUnknown("The bank hung up.")


async def begun(receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise OutcomeUnknown("The bank hung up.")


@pytest.mark.parametrize("work", [reset, begun])
def test_the_first_caller_gets_504_and_repeats_learn_that_nobody_knows(work: Any) -> None:
    clock, events, effects = ManualClock(), list[Event](), 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal effects
        effects += 1
        await work(receive, send)

    async def scene() -> None:
        store = open_async_store("memory://", clock=clock)
        protected = IdempotencyMiddleware(app, store=store, identify=lambda scope: "ann", on_event=events.append)
        transport = httpx.ASGITransport(app=protected)
        name = uuid.uuid4().hex
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            first = await client.post("/pay", headers={"Idempotency-Key": name})
            assert (first.status_code, first.headers.get("retry-after")) == (504, None)
            problem = json.loads(first.content)
            assert (problem["type"], problem["detail"]) == ("/.well-known/idempotency#interrupted", "The bank hung up.")
            record = await store.get(Key("ann", "POST /pay", name))
            assert record is not None
            assert record.state is State.IN_PROGRESS
            again = await client.post("/pay", headers={"Idempotency-Key": name})
            assert (again.status_code, again.json()["type"].rpartition("#")[2]) == (409, "outcome-unknown")

    asyncio.run(scene())
    assert effects == 1
    assert EventKind.LEFT in {event.kind for event in events}
