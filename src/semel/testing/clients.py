"""One way to ask a service, for every client that a test may have: httpx, Starlette's, Django's or Flask's."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any, Literal

PATIENCE_S = 60
Kind = Literal["httpx", "django", "werkzeug"]
MODULES: dict[str, Kind] = {"httpx": "httpx", "httpx2": "httpx", "django": "django", "werkzeug": "werkzeug"}


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A request, as the bytes that every repeat of it has."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    """Names are lower case."""
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for header, value in self.headers if header == name), None)

    def __str__(self) -> str:
        text = self.body.decode("utf-8", "replace")
        return f"{self.status} {text if len(text) <= 200 else text[:200] + '…'}".rstrip()


def kind_of(client: object) -> Kind:
    """Which family of clients this one belongs to; Starlette's and Litestar's test clients are httpx clients."""
    for ancestor in type(client).__mro__:
        kind = MODULES.get(ancestor.__module__.partition(".")[0])
        if kind is not None:
            return kind
    raise TypeError(
        f"no way to send a request with a {type(client).__name__}: give an httpx client, "
        "or the test client of Starlette, FastAPI, Litestar, Django or Flask"
    )


def is_async(client: object) -> bool:
    return any(ancestor.__name__ == "AsyncClient" for ancestor in type(client).__mro__)


def send(client: Any, call: ClientCall) -> Answer:
    kind = kind_of(client)
    if kind == "httpx":
        got = client.request(call.method, call.url, headers=call.headers, content=call.body, follow_redirects=False)
        return _answer(got.status_code, got.headers.multi_items(), got.content)
    if kind == "django":
        got = client.generic(call.method, call.url, call.body, _content_type(call), headers=_others(call))
        return _answer(got.status_code, got.headers.items(), b"".join(got))
    got = client.open(call.url, method=call.method, data=call.body, headers=call.headers, follow_redirects=False)
    return _answer(got.status_code, got.headers, got.get_data())


async def asend(client: Any, call: ClientCall) -> Answer:
    if kind_of(client) == "httpx":
        got = await client.request(
            call.method, call.url, headers=call.headers, content=call.body, follow_redirects=False
        )
        return _answer(got.status_code, got.headers.multi_items(), got.content)
    got = await client.generic(call.method, call.url, call.body, _content_type(call), headers=_others(call))
    body = b"".join([part async for part in got]) if got.streaming else got.content
    return _answer(got.status_code, got.headers.items(), body)


def send_at_once(client: object, calls: Sequence[ClientCall]) -> list[Answer]:
    """From one thread for each call; all of them set out together."""
    start = Barrier(len(calls))
    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(lambda call: _from_a_thread(client, call, start), calls))


def _from_a_thread(client: object, call: ClientCall, start: Barrier) -> Answer:
    if kind_of(client) == "httpx":  # made for threads
        start.wait(PATIENCE_S)
        return send(client, call)
    client = copy.copy(client)  # with the cookies of the original, so a login stays
    start.wait(PATIENCE_S)
    try:
        return send(client, call)
    finally:
        if kind_of(client) == "django":
            from django.db import connections

            connections.close_all()  # this thread's own, which would keep the test's database from being dropped


def _answer(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> Answer:
    return Answer(status, tuple((name.lower(), value) for name, value in headers), body)


def _content_type(call: ClientCall) -> str:
    return next((value for name, value in call.headers if name.lower() == "content-type"), "application/octet-stream")


def _others(call: ClientCall) -> dict[str, str]:
    return {name: value for name, value in call.headers if name.lower() != "content-type"}
