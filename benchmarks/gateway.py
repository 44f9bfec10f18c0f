"""Requests per second through the gateway, without and with a key, beside a bare proxy of the same parts.

The bare proxy is the same server and the same client library, and does nothing else: no middleware, no checks, no
headers of its own. Both stand in front of one upstream. `python -m benchmarks.gateway PORT UPSTREAM` is that proxy.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.load import Mode, fire
from servers.process import Server

ROOT = Path(__file__).parent.parent
CALLERS = 32
ANSWER = b'{"payment": 1, "amount": 10}'


async def upstream(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body", False):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


class Bare:
    """The least that a proxy can do with aiohttp behind an ASGI server."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.session is None:
            self.session = aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())
        body = b""
        while (message := await receive()).get("more_body", False):
            body += message["body"]
        body += message["body"]
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
        url = self.base + scope["path"]
        async with self.session.request(scope["method"], url, headers=headers, data=body) as answer:
            content = await answer.read()
            started = {"status": answer.status, "headers": [(n.lower(), v) for n, v in answer.raw_headers]}
        await send({"type": "http.response.start", **started})
        await send({"type": "http.response.body", "body": content})


class Listening(Server):
    """A program that listens on its port."""

    def __init__(self, *words: str) -> None:
        super().__init__()
        self._words = words

    def prepare(self) -> None:
        """Nothing is needed."""

    def command(self) -> Sequence[str | Path]:
        words = [word.format(port=self.port) for word in self._words]
        return ["env", f"PYTHONPATH={ROOT}:{ROOT}/tests", sys.executable, "-m", *words]

    def probe(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), timeout=1).close()


class NotServed(Exception):
    """Some requests were not answered by the upstream."""


def per_second(port: int, seconds: float, mode: Mode) -> float:
    """How many POSTs get through."""
    found = fire(port, CALLERS, seconds, mode)
    if found.refused or found.broken:
        raise NotServed(f"{found.refused} of {found.requests} requests were refused, {found.broken} had no answer")
    return found.per_second


@contextmanager
def servers() -> Iterator[tuple[int, int]]:
    """The ports of a bare proxy and of a gateway, one worker each, in front of the same upstream."""
    quiet = ("--log-level", "warning", "--no-access-log", "--lifespan", "off")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        behind = stack.enter_context(Listening("uvicorn", *quiet, "--port", "{port}", "benchmarks.gateway:upstream"))
        base = f"http://127.0.0.1:{behind.port}"
        bare = stack.enter_context(Listening("benchmarks.gateway", "{port}", base))
        options = ("--upstream", base, "--listen", "127.0.0.1:{port}", "--store", f"sqlite:///{folder}/semel.db")
        gateway = stack.enter_context(Listening("semel", "gateway", *options))
        yield bare.port, gateway.port


def serve_bare(port: int, base: str) -> None:
    import uvicorn

    uvicorn.run(Bare(base), port=port, lifespan="off", access_log=False, log_level="warning", http="httptools")


if __name__ == "__main__":
    serve_bare(int(sys.argv[1]), sys.argv[2])
