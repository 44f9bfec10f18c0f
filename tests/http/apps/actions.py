"""What every application of the wire suite does, and the settings it reads from its environment.

`SEMEL_TEST_STORE` (URL), `SEMEL_TEST_POLICY` (a name below), `SEMEL_TEST_FOLDER` (ledger, clock and gate files).
A framework's module turns `act` or, in threads, `act_blocking` into routes `POST /{action}` and protects itself with
the arguments from `protection` or `blocking_protection`. Nothing here knows a framework.
"""

import asyncio
import gzip
import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from wsgiref.types import WSGIEnvironment

from semel import NotExecuted, Policy, open_async_store, open_store
from semel.core.rules import Rule
from semel.events import Event, EventKind
from semel.runtime.clock import wall_ms
from semel.runtime.operation import current_operation
from semel.store import AsyncStore, Store

FOLDER = Path(os.environ["SEMEL_TEST_FOLDER"])
LARGE = 200_000
PAUSE_S = 0.005
POLICIES: dict[str, Policy] = {
    "default": Policy(result_max=100_000, body_max=10_000),
    "at-least-once": Policy(guarantee="at-least-once"),
    "wait": Policy(in_flight="wait"),
    "accept": Policy(in_flight="accept"),
    "refuse": Policy(expired="refuse"),
    "open": Policy(on_store_error="open"),
    "short": Policy(lease=0.4),
    "quota": Policy(quota="2/hour"),
}
RULES = (
    Rule("POST /required", Policy(required=True)),
    Rule("POST /exempt", None),
    Rule("POST /json", Policy(fingerprint="json")),
    Rule("POST /strict", Policy.draft07()),
)


@dataclass
class Answer:
    status: int = 200
    headers: list[tuple[str, str]] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=lambda: [b""])


JSON = ("content-type", "application/json")
ANSWERS: dict[str, Callable[[int], Answer]] = {
    "pay": lambda effect: Answer(201, [JSON, ("location", f"/payments/{effect}")], [b'{ "payment" : %d }' % effect]),
    "binary": lambda _: Answer(200, [("content-type", "application/octet-stream")], [bytes(range(256))]),
    "empty": lambda _: Answer(200, [("content-type", "text/plain")]),
    "none": lambda _: Answer(204),
    "see": lambda _: Answer(303, [("location", "/elsewhere")]),
    "bad": lambda _: Answer(400, [JSON], [b'{"error": "bad"}']),
    "missing": lambda _: Answer(404, [("content-type", "text/plain")], [b"no such thing"]),
    "broken": lambda _: Answer(502, [("content-type", "text/plain")], [b"the bank did not answer"]),
    "refused": lambda _: Answer(503, [("retry-after", "3")], [b"come back"]),
    "stream": lambda _: Answer(200, [("content-type", "text/plain")], [b"part %d\n" % number for number in range(50)]),
    "gzip": lambda _: Answer(200, [JSON, ("content-encoding", "gzip")], [gzip.compress(b'{"a": 1}' * 50)]),
    "repeated": lambda _: Answer(
        200,
        [JSON, ("x-a", "1"), ("x-b", "2"), ("x-a", "3"), ("set-cookie", "a=1"), ("set-cookie", "b=2"), ("x-a", "1")],
        [b"{}"],
    ),
    "large": lambda _: Answer(200, [("content-type", "text/plain")], [b"x" * 1000] * (LARGE // 1000)),
    "directive": lambda _: Answer(200, [("semel-directive", "not-kept"), JSON], [b"{}"]),
}


Work = Generator[None, None, Answer]


def work(action: str, key: str) -> Work:
    """Take effect, which the ledger shows, then answer. What was asked for decides how; each step is a pause."""
    effect = record(key)
    if action == "hold":
        while not (FOLDER / "go").exists():
            yield
    elif action == "raise":
        raise LookupError("a secret of the application")
    elif action == "not-executed":
        raise NotExecuted("The bank is closed.")
    elif action == "nothing-done":
        operation = current_operation()
        if operation is not None:
            operation.nothing_done()
    return ANSWERS.get(action, ANSWERS["pay"])(effect)


async def act(action: str, key: str) -> Answer:
    steps = work(action, key)
    while (answer := next_of(steps)) is None:
        await asyncio.sleep(PAUSE_S)
    return answer


def act_blocking(action: str, key: str) -> Answer:
    steps = work(action, key)
    while (answer := next_of(steps)) is None:
        time.sleep(PAUSE_S)
    return answer


def next_of(steps: Work) -> Answer | None:
    try:
        next(steps)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    return None


def record(key: str) -> int:
    """One line in a file outside of every process; says how many there are for the key."""
    ledger = FOLDER / "ledger"
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{key} {os.getpid()}\n".encode())
    finally:
        os.close(descriptor)
    return sum(line.split()[0] == key for line in ledger.read_text().splitlines())


def clock_ms() -> int:
    """The wall clock, moved by the number in a file: all processes see the same jump."""
    try:
        return wall_ms() + int((FOLDER / "clock").read_text())
    except FileNotFoundError:
        return wall_ms()


def identify(scope: Any) -> str | None:
    """Who calls, by a header of the tests."""
    return next((value.decode() for name, value in scope["headers"] if name == b"caller"), None)


def identify_environ(environ: WSGIEnvironment) -> str | None:
    caller: str | None = environ.get("HTTP_CALLER")
    return caller


def settings() -> dict[str, Any]:
    """What every kind of middleware is told alike."""
    return {
        "policy": POLICIES[os.environ.get("SEMEL_TEST_POLICY", "default")],
        "rules": RULES,
        "secret": "the same for every process",
        "on_event": show,
    }


def async_store() -> AsyncStore:
    return open_async_store(os.environ["SEMEL_TEST_STORE"], clock=clock_ms)


def blocking_store() -> Store:
    return open_store(os.environ["SEMEL_TEST_STORE"], clock=clock_ms)


def protection() -> dict[str, Any]:
    """The arguments of the ASGI middleware."""
    return {"store": async_store(), "identify": identify, **settings()}


def blocking_protection() -> dict[str, Any]:
    """The arguments of the WSGI middleware."""
    return {"store": blocking_store(), "identify": identify_environ, **settings()}


def show(event: Event) -> None:
    """Into the server's log, which a failed test can look at."""
    if event.kind in (EventKind.STORE_FAILED, EventKind.NOT_STORED):
        print(event, flush=True)
