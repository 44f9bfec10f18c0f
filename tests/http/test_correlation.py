"""The request's correlation id is kept with the record, and logged beside a digest of the key."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from asking import post
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from semel import Filter
from semel.asgi import IdempotencyMiddleware
from semel.core.correlation import correlation_of
from semel.events import Event, EventKind

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def served(events: list[Event]) -> Any:
    async def pay(request: Request) -> JSONResponse:
        return JSONResponse({})

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    return IdempotencyMiddleware(app, store="memory://", identify=lambda scope: "me", on_event=events.append)


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, TRACE),
        ({"x_request_id": "req-17"}, "req-17"),
        ({"x_request_id": "a b\x7f" + "c" * 99}, "a_b_" + "c" * 36),
        ({}, ""),
    ],
)
def test_the_correlation_id_is_kept_and_logged(
    headers: dict[str, str], kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        events: list[Event] = []
        app = served(events)
        await post(app, "/pay", "a-secret-key", body=b"{}", **headers)
        await post(app, "/pay", "a-secret-key", x_request_id="the repeat")
        [record] = (await app.store.scan(Filter())).records
        assert correlation_of(record.owner) == kept
        assert [event.kind for event in events] == [EventKind.CLAIMED, EventKind.COMPLETED, EventKind.REPLAYED]
        assert {event.correlation for event in events} == {kept}, "a replay names the request whose answer it is"

    with caplog.at_level(logging.DEBUG, "semel"):
        asyncio.run(main())
    lines = [line for line in caplog.messages if line.startswith("replayed")]
    assert len(lines) == 1
    assert (f"request={kept}" in lines[0]) is bool(kept)
    assert "a-secret-key" not in caplog.text
    assert "key=" in lines[0]
