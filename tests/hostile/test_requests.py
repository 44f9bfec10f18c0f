"""Hostile requests: nothing runs unprotected, nothing crosses tenants, nothing is inflated, no log is forged."""

from __future__ import annotations

import asyncio
import gzip
import logging
import unicodedata
from typing import Any

import httpx
import pytest
from flask import Flask
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from semel import Policy
from semel.asgi import IdempotencyMiddleware, Rule
from semel.events import Event, EventKind
from semel.stores.memory import AsyncMemoryStore
from semel.wsgi import IdempotencyMiddleware as WsgiMiddleware

REQUIRED = [Rule("POST /payments", Policy(required=True)), Rule("POST /admin/", Policy(required=True))]
TRICKS = [
    "/payments", "//payments", "/payments/", "/payments//", "/./payments", "/x/../payments", "/%70ayments",
    "/PAYMENTS", "/Payments", "/payments;x=1", "/payments%3Bx=1", "/payments%00", "/payments%20", "/payments%2F",
    "/%2Fpayments", "/payments.", "/payments?x=1", "/payments%23x", "/payments%3Fx", "/payments\\", "/payments%0A",
    "/admin/refund", "/admin//refund", "//admin/refund", "/admin/%72efund", "/admin%2Frefund", "/admin/refund/",
    "/admin/./refund", "/ADMIN/refund", "/admin;x/refund",
]  # fmt: skip


class Wall:
    """An application behind the middleware that counts what runs, and what ran under which key."""

    def __init__(self, **settings: Any) -> None:
        self.ran: list[bytes] = []
        self.store = AsyncMemoryStore()
        settings.setdefault("identify", lambda scope: dict(scope["headers"]).get(b"caller", b"").decode("latin-1"))
        self.front = IdempotencyMiddleware(self.app, store=self.store, **settings)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.ran.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"ran %d" % len(self.ran)})

    async def ask(
        self, headers: list[tuple[bytes, bytes]], body: bytes = b"{}", path: str = "/pay", method: str = "POST"
    ) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        sent: list[Any] = []
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
        scope["raw_path"] = path.encode("utf-8", "surrogateescape")

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.front(scope, receive, send)
        return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:]), list(sent[0]["headers"])

    def asked(self, *calls: dict[str, Any]) -> list[tuple[int, bytes, list[tuple[bytes, bytes]]]]:
        async def ask() -> list[Any]:
            return [await self.ask(**call) for call in calls]

        return asyncio.run(ask())


def named(key: bytes, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(b"idempotency-key", key), *more]


async def endpoint(request: Request) -> PlainTextResponse:
    request.app.state.ran += 1
    return PlainTextResponse("ran", 201)


@pytest.mark.parametrize("trick", TRICKS)
def test_no_spelling_of_a_path_gets_around_a_required_key_in_starlette(trick: str) -> None:
    routes = [
        Route("/payments", endpoint, methods=["POST"]),
        Mount("/admin", routes=[Route("/refund", endpoint, methods=["POST"])]),
    ]
    app = Starlette(routes=routes)
    app.state.ran = 0
    app.add_middleware(IdempotencyMiddleware, store="memory://", rules=REQUIRED, identify=lambda scope: "t")

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post(httpx.URL("http://test").copy_with(raw_path=trick.encode()))

    assert asyncio.run(ask()).status_code in (307, 400, 404, 405)
    assert app.state.ran == 0


@pytest.mark.parametrize("trick", TRICKS)
def test_no_spelling_of_a_path_gets_around_a_required_key_in_flask(trick: str) -> None:
    app, ran = Flask("tricks"), []
    app.post("/payments")(lambda: (ran.append(1), ("ran", 201))[1])  # type: ignore[func-returns-value]
    app.post("/admin/refund", endpoint="refund")(lambda: (ran.append(1), ("ran", 201))[1])  # type: ignore[func-returns-value]
    app.wsgi_app = WsgiMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, store="memory://", rules=REQUIRED, identify=lambda environ: "t"
    )
    client = httpx.Client(transport=httpx.WSGITransport(app), base_url="http://test")
    answer = client.post(httpx.URL("http://test").copy_with(raw_path=trick.encode()))
    assert answer.status_code in (307, 308, 400, 404, 405)
    assert ran == []


@pytest.mark.parametrize("method", ["post", "Post", "pOST"])
def test_no_spelling_of_a_method_gets_around_a_required_key(method: str) -> None:
    wall = Wall(policy=Policy(required=True))
    [(status, _, _)] = wall.asked({"headers": [], "method": method})
    assert (status, wall.ran) == (400, [])


def test_a_compressed_body_is_compared_as_it_is_and_never_inflated() -> None:
    """Ten mebibytes of zeros in ten kilobytes: what counts, and what is kept, is what came over the wire."""
    bomb = gzip.compress(bytes(10 * 2**20))
    wall = Wall(policy=Policy(body_max=len(bomb)))
    headers = named(b"k", (b"content-encoding", b"gzip"))
    first, again, larger = wall.asked(
        *[{"headers": headers, "body": bomb}] * 2, {"headers": headers, "body": bomb + b"x"}
    )
    assert (first[0], again[0], larger[0]) == (201, 201, 413)
    assert wall.ran == [bomb]


def test_two_compressions_of_one_body_are_two_requests() -> None:
    wall = Wall()
    headers = named(b"k", (b"content-encoding", b"gzip"))
    bodies = [gzip.compress(b"{}" * 100, level, mtime=0) for level in (1, 9)]
    assert [status for status, *_ in wall.asked(*({"headers": headers, "body": body} for body in bodies))] == [201, 422]


@pytest.mark.parametrize(
    "headers",
    [
        named(b"k" * 70_000),
        named(b'"' + b"k" * 70_000),
        named(b"k", (b"idempotency-key", b"k")),
        named(b"k\r\nX-Injected: 1"),
        named(b"k\n"),
        named(b"\0"),
        named("ключ".encode()),
        named(b"\xff\xfe"),
    ],
)
def test_hostile_keys_are_refused_and_nothing_runs(headers: list[tuple[bytes, bytes]]) -> None:
    wall = Wall()
    [(status, body, sent)] = wall.asked({"headers": headers})
    assert (status, wall.ran) == (400, [])
    assert b"Injected" not in body + b"".join(value for _, value in sent)


def test_a_body_behind_a_false_length_is_bounded_all_the_same() -> None:
    wall = Wall(policy=Policy(body_max=10))
    lengths = [b"5", b"0", b"-1", b"abc", b"", b"999999999999"]
    answers = wall.asked(
        *({"headers": named(b"k", (b"content-length", length)), "body": b"x" * 11} for length in lengths)
    )
    assert [status for status, *_ in answers] == [413] * len(lengths)
    assert wall.ran == []


HOSTILE = st.binary(max_size=60) | st.sampled_from(
    [
        b"a\r\nSet-Cookie: x=1",
        b"\x1b[31mred",
        b"a\nERROR forged line",
        "\u202etxt.exe".encode(),
        b"\x00",
        b"\x85\x9b",
        b"",
    ]
)


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(HOSTILE, HOSTILE, HOSTILE, st.sampled_from([b"x-request-id", b"traceparent"]))
def test_no_control_character_reaches_a_log_an_event_or_a_header(
    value: bytes, caller: bytes, path: bytes, correlation: bytes
) -> None:
    events: list[Event] = []
    records: list[str] = []
    handler = Capture(records)
    logger = logging.getLogger("semel")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        wall = Wall(on_event=events.append)
        headers = named(b"k", (correlation, value), (b"caller", caller))
        answers = wall.asked(*[{"headers": headers, "path": "/" + path.decode("latin-1")}] * 2)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert [status for status, *_ in answers] == [201, 201]
    assert len(wall.ran) == 1
    assert EventKind.REPLAYED in {event.kind for event in events}
    assert records
    for text in (*records, *map(str, events)):
        assert text.isprintable(), repr(text)
    for _, _, sent in answers:
        assert not any(byte < 32 for name, content in sent for byte in name + content)


class Capture(logging.Handler):
    def __init__(self, records: list[str]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record.getMessage())


LOOKALIKES = [
    "anna", "Anna", "ANNA", "anna ", " anna", "аnna", "ann\u0430", "anna\u200b", "anna\u202e", "a\u0301nna",
    unicodedata.normalize("NFC", "a\u0301nna"), "ａｎｎａ", "anna\x00", "anna\n", "\ud800anna", "anna\udfff",
    "sha256:anna",
    "x" * 255, "x" * 256, "x" * 257, "", "auth.anna", "user.anna",
]  # fmt: skip


def test_callers_that_look_alike_never_share_a_key() -> None:
    names = iter([*LOOKALIKES, *LOOKALIKES])
    wall = Wall(identify=lambda scope: next(names))
    answers = wall.asked(*[{"headers": named(b"k")}] * (2 * len(LOOKALIKES)))
    first, again = answers[: len(LOOKALIKES)], answers[len(LOOKALIKES) :]
    assert len({body for _, body, _ in first}) == len(LOOKALIKES) == len(wall.ran)
    assert [body for _, body, _ in again] == [body for _, body, _ in first], "and each gets its own answer again"


def test_paths_that_look_alike_never_share_a_key() -> None:
    wall = Wall()
    paths = ["/a/b", "/a%2Fb", "/a//b", "/A/b", "/a/b/", "/a/./b", "/a/b;x", "/e\u0301", "/\u00e9", "/a/b%00"]
    wall.asked(*({"headers": named(b"k"), "path": path} for path in paths))
    assert len(wall.ran) == len(paths)


def test_no_caller_can_choose_a_name_that_is_another_one_s_digest() -> None:
    long = "x" * 300
    wall = Wall(identify=lambda scope: long)
    wall.asked({"headers": named(b"k")})
    [record] = asyncio.run(wall.store.scan()).records
    digest = record.key.tenant
    assert digest.startswith("sha256:")
    assert wall.front.gate.tenant_of(digest) != digest
