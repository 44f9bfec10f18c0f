"""Callers of the project: the same request through Django's WSGI and ASGI handlers, as a server would make it."""

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from wsgiref.util import setup_testing_defaults

from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler

from semel.testing.loop_thread import LoopThread

Call = Callable[..., "Answer"]


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def __getitem__(self, name: str) -> str | None:
        found = [value for header, value in self.headers if header.lower() == name.lower()]
        return ", ".join(found) if found else None

    @property
    def kept(self) -> tuple[int, list[tuple[str, str]], bytes]:
        """What a replay must repeat exactly."""
        volatile = ("idempotent-replayed", "set-cookie")
        return self.status, [each for each in self.headers if each[0].lower() not in volatile], self.body


class ByWsgi:
    name = "wsgi"

    def __init__(self) -> None:
        self.app = WSGIHandler()

    def __call__(self, path: str, body: bytes = b"{}", method: str = "POST", **headers: str) -> Answer:
        started: list[Any] = []
        parts = self.start(path, body, method, headers, started)
        try:
            content = b"".join(parts)
        finally:
            parts.close()
        return Answer(int(started[0].split()[0]), started[1], content)

    def start(self, path: str, body: bytes, method: str, headers: dict[str, str], started: list[Any]) -> Any:
        """The parts of the answer as the server gets them; its status and headers are in `started`."""
        path, _, query = path.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_LENGTH": str(len(body)),
            "CONTENT_TYPE": "application/json",
        }
        setup_testing_defaults(environ)
        environ["wsgi.input"] = io.BytesIO(body)
        for name, value in headers.items():
            environ[name.upper() if name == "content_type" else f"HTTP_{name.upper()}"] = value
        return self.app(environ, lambda status, headers: started.extend((status, headers)))

    def close(self) -> None:
        pass


class ByAsgi:
    name = "asgi"

    def __init__(self) -> None:
        self.app = ASGIHandler()
        self.loop = LoopThread()

    def __call__(self, path: str, body: bytes = b"{}", method: str = "POST", **headers: str) -> Answer:
        return self.loop.run(self.call(path, body, method, **headers))

    async def call(self, path: str, body: bytes = b"{}", method: str = "POST", **headers: str) -> Answer:
        messages: list[Any] = []
        received = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if received:
                return received.pop()
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            messages.append(message)

        await self.app(self.scope(path, body, method, headers), receive, send)
        start, *parts = messages
        given = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
        return Answer(start["status"], given, b"".join(part.get("body", b"") for part in parts))

    def scope(self, path: str, body: bytes, method: str, headers: dict[str, str]) -> dict[str, Any]:
        path, _, query = path.partition("?")
        given = {"content-type": "application/json", "content-length": str(len(body)), "host": "test"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        if not given["content-length"]:
            del given["content-length"]
        return {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
        }

    def communicator(self, path: str, body: bytes = b"{}", method: str = "POST", **headers: str) -> Any:
        """For a caller that leaves."""
        make: Any = ApplicationCommunicator
        return make(self.app, self.scope(path, body, method, headers))

    def close(self) -> None:
        self.loop.close()
