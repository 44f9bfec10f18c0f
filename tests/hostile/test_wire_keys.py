"""Differential: the same bytes on a socket mean the same key behind every server, or the server itself refuses them."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest
from serving import AppServer, read

ASGI = ("uvicorn-h11", "uvicorn-httptools", "hypercorn", "granian")
WSGI = ("waitress", "gunicorn")
REFUSED = "refused by the server"
SEED, RANDOM_CASES = 20261115, 60
ALPHABET = [bytes([byte]) for byte in (*range(1, 10), 11, 12, *range(14, 256))]

KEY = b"Idempotency-Key: "
CASES: dict[str, bytes] = {
    "bare": KEY + b"order-1",
    "quoted": KEY + b'"order 1, again"',
    "blanks around": KEY + b" \t order-2 \t ",
    "no blank": b"Idempotency-Key:order-3",
    "name in capitals": b"IDEMPOTENCY-KEY: order-4",
    "the other name": b"X-Idempotency-Key: order-5",
    "both names": KEY + b'order-6\r\nX-Idempotency-Key: "order-6"',
    "both names differ": KEY + b"a\r\nX-Idempotency-Key: b",
    "empty": KEY,
    "only blanks": KEY + b" \t ",
    "twice": KEY + b"a\r\n" + KEY + b"b",
    "twice the same": KEY + b"a\r\n" + KEY + b"a",
    "comma": KEY + b"a,b",
    "255": KEY + b"k" * 255,
    "256": KEY + b"k" * 256,
    "5000": KEY + b"k" * 5_000,
    "70000": KEY + b"k" * 70_000,
    "blank in it": KEY + b"a b",
    "tab in it": KEY + b"a\tb",
    "NUL": KEY + b"a\0b",
    "bell": KEY + b"a\x07b",
    "DEL": KEY + b"a\x7fb",
    "UTF-8": KEY + "clé".encode(),
    "latin-1": KEY + b"cl\xe9",
    "no-break space": KEY + b"\xa0a\xa0",
    "fullwidth": KEY + "ａ".encode(),
    "right to left": KEY + "\u202ea".encode(),
    "encoded": KEY + b"%61",
    "quote left open": KEY + b'"a',
    "after the quote": KEY + b'"a"b',
    "parameters": KEY + b'"a";b=1;c',
    "escapes": KEY + rb'"a\"b\\c"',
    "bad escape": KEY + rb'"a\nb"',
    "bare CR": KEY + b"a\rb",
    "bare LF": KEY + b"a\nX-Other: b",
    "folded": KEY + b"a\r\n b",
    "blank before the colon": b"Idempotency-Key : a",
    "underscore": b"Idempotency_Key: a",
    "another header": b"Idempotency-Key2: a",
    "unicode name": "Idempotency-Key\u00a0: a".encode(),
    "kelvin": "Idempotency-\u212aey: a".encode(),
    "prefix": b"Idempotency-Ke: a",
}


def random_cases() -> dict[str, bytes]:
    """Values of ordinary letters with hostile bytes among them; no CR, LF or NUL, which have cases of their own."""
    rng = random.Random(SEED)
    cases = {}
    for number in range(RANDOM_CASES):
        value = [rng.choice((b"a", b"B", b"-", b'"', b"\\", b";", b"=", b" ", rng.choice(ALPHABET))) for _ in range(12)]
        cases[f"random {number}"] = KEY + (b'"%s"' if rng.random() < 0.5 else b"%s") % b"".join(
            value[: rng.randint(1, 12)]
        )
    return cases


class Told(AppServer):
    """A server with an application that says which key it was given."""

    def __init__(self, server: str) -> None:
        super().__init__("", server, {})
        self._app = f"told:{'wsgi' if server in WSGI else 'asgi'}"
        self._settings["PYTHONPATH"] = str(Path(__file__).parent)

    def verdict(self, line: bytes) -> str:
        """The key that the application was given, the problem that it was refused with, or the server's refusal."""
        head = b"POST /pay HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 2\r\n" + line + b"\r\n\r\n{}"
        with suppress(OSError, HTTPException), socket.create_connection(("127.0.0.1", self.port), timeout=20) as wire:
            with suppress(OSError):  # it may have refused before all was sent
                wire.sendall(head)
            reply = read(wire)
            if reply.status == 200:
                return f"key {json.loads(reply.body)['key']!r}"
            if reply.header("content-type") == "application/problem+json":
                return reply.problem
            assert 400 <= reply.status < 500, f"{reply.status} {reply.body!r}"
        return REFUSED


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Told]]:
    started: dict[str, Told] = {}
    try:
        for name in (*ASGI, *WSGI):
            started[name] = Told(name)
            started[name].start()
        yield started
    finally:
        for server in started.values():
            server.stop()


def test_one_verdict_behind_every_server(servers: dict[str, Told]) -> None:
    differ = {}
    seen = set()
    for name, line in (CASES | random_cases()).items():
        verdicts = {server: each.verdict(line) for server, each in servers.items()}
        ours = {verdict for verdict in verdicts.values() if verdict != REFUSED}
        seen |= ours
        if len(ours) > 1:
            differ[name] = verdicts
    assert differ == {}
    assert "key-malformed" in seen
    assert "key 'order-2'" in seen, "a run in which the servers refuse everything proves nothing"


def test_what_is_not_the_header_is_no_key_anywhere(servers: dict[str, Told]) -> None:
    for name in ("underscore", "another header", "prefix", "kelvin", "unicode name"):
        verdicts = {server: each.verdict(CASES[name]) for server, each in servers.items()}
        assert set(verdicts.values()) <= {"key None", REFUSED}, (name, verdicts)


def test_a_key_never_reaches_over_a_line(servers: dict[str, Told]) -> None:
    """Bare CR, bare LF and folded lines: refused, or no part of what follows is in the key."""
    for name in ("bare CR", "bare LF", "folded"):
        for server, each in servers.items():
            assert each.verdict(CASES[name]) in (REFUSED, "key-malformed", "key 'a'"), (name, server)
