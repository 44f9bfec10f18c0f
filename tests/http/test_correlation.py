"""The request's correlation id is kept with the record, and logged beside a digest of the key."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from asking import post
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from wsgi_calls import environ_of

from semel import Filter, Policy
from semel.asgi import IdempotencyMiddleware
from semel.core.correlation import correlation_of
from semel.events import Event, EventKind
from semel.wsgi import IdempotencyMiddleware as WsgiMiddleware

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def served(events: list[Event], **options: Any) -> Any:
    async def pay(request: Request) -> JSONResponse:
        return JSONResponse({})

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    return IdempotencyMiddleware(app, store="memory://", identify=lambda scope: "me", on_event=events.append, **options)


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
    assert " request=the_repeat" in lines[0]
    assert (f"first_request={kept}" in lines[0]) is bool(kept)
    assert "a-secret-key" not in caplog.text
    assert "key=" in lines[0]


ASKED: list[tuple[str, bytes, str]] = [
    ("k", b"{}", "req-1"),
    ("k", b"{}", "req-2"),
    ("k", b"another", "req-3"),
    ("not, a key", b"{}", "req-4"),
    ("large", b"x" * 20, "req-5"),
]
TOLD = [
    ("claimed", "req-1"),
    ("completed", "req-1"),
    ("replayed", "req-2"),
    ("mismatched", "req-3"),
    ("refused", "req-4"),
    ("refused", "req-5"),
]


def test_every_event_of_the_asgi_front_names_the_request_at_hand() -> None:
    events: list[Event] = []

    async def main() -> None:
        app = served(events, policy=Policy(body_max=16))
        for key, body, request in ASKED:
            await post(app, "/pay", key, body=body, x_request_id=request)

    asyncio.run(main())
    assert [(event.kind.value, event.request) for event in events] == TOLD
    assert {event.key.scope for event in events} == {"POST /pay"}


def test_every_event_of_the_wsgi_front_names_the_request_at_hand() -> None:
    events: list[Event] = []

    def pay(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response("201 Created", [("Content-Type", "text/plain")])
        return [b"paid"]

    app = WsgiMiddleware(
        pay, store="memory://", policy=Policy(body_max=16), identify=lambda environ: "me", on_event=events.append
    )
    for key, body, request in ASKED:
        environ = environ_of("/pay", key=key, body=body, HTTP_X_REQUEST_ID=request)
        list(app(environ, lambda *_: lambda _: None))
    assert [(event.kind.value, event.request) for event in events] == TOLD
    assert {event.key.scope for event in events} == {"POST /pay"}


def test_a_refused_request_of_a_trace_names_the_trace() -> None:
    events: list[Event] = []
    app = served(events)
    asyncio.run(post(app, "/pay", "not, a key", traceparent=f"00-{TRACE}-00f067aa0ba902b7-01"))
    assert [event.request for event in events] == [TRACE]
