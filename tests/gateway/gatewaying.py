"""A gateway as its users run it, in front of an upstream that does exactly what a test says, byte by byte."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from typing import BinaryIO, cast

import psutil

from servers.process import Server, free_port, wait_until_dead
from waiting import until

FORKS = "multiprocessing.forkserver"
PATIENCE_S = 20
"""How long anything may take on a machine that does many things."""


@dataclass(frozen=True)
class Asked:
    """One request as the upstream got it."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    @property
    def path(self) -> str:
        return self.line.split()[1]

    def all(self, name: str) -> list[str]:
        return [value for header, value in self.headers if header.lower() == name]


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return next((value for header, value in self.headers if header.lower() == name), None)


Behaviour = Callable[["Upstream", Asked, socket.socket], "bool | None"]
"""Answers on the connection; True keeps it open for another request."""


class Upstream:
    """An HTTP server in threads of the test, whose every answer is a function of the test's."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.received = bytearray()
        """Every byte of bodies, as it comes."""
        self.behaviours: dict[str, Behaviour] = {}
        self.unread: dict[str, Behaviour] = {}
        """Those that read the body themselves."""
        self.go = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._connections = 0
        self._answering: set[int] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def effects(self, key: str) -> int:
        """How many requests with this text in their body have come."""
        return sum(key.encode() in asked.body for asked in list(self.asked))

    def wait_for(self, key: str, count: int = 1) -> None:
        until(lambda: self.effects(key) >= count, f"{key} did not come")

    def settle(self) -> None:
        """Wait until every connection that an answer ends is closed: a gateway would still take it for a kept one."""
        self.go.set()
        until(lambda: not self._answering, "the upstream still answers")

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections += 1
                threading.Thread(target=self._follow, args=(connection, self._connections), daemon=True).start()

    def _follow(self, connection: socket.socket, number: int) -> None:
        try:
            self._serve(connection, number)
        finally:
            self._answering.discard(number)

    def _serve(self, connection: socket.socket, number: int) -> None:
        # A body that breaks off ends the connection, too.
        with connection, contextlib.suppress(OSError, ValueError), self._stream(connection) as stream:
            while (asked := self._read(stream, number)) is not None:
                self._answering.add(number)
                self.asked.append(asked)
                path = asked.path.partition("?")[0]
                behaviour = self.unread.get(path) or self.behaviours.get(path, created)
                if not behaviour(self, asked, connection):
                    return
                self._answering.discard(number)

    def _stream(self, connection: socket.socket) -> BinaryIO:
        """Unbuffered where a behaviour reads the body itself."""
        return cast(BinaryIO, connection.makefile("rb", 0)) if self.unread else connection.makefile("rb")

    def _read(self, stream: BinaryIO, number: int) -> Asked | None:
        line = stream.readline().decode("latin-1").rstrip("\r\n")
        if not line:
            return None
        headers = []
        while text := stream.readline().decode("latin-1").rstrip("\r\n"):
            name, _, value = text.partition(":")
            headers.append((name, value.strip()))
        named = {name.lower(): value for name, value in headers}
        body = b""
        if line.split()[1] in self.unread:
            return Asked(line, headers, body, number)
        if "chunked" in named.get("transfer-encoding", ""):
            while size := int(stream.readline().split(b";")[0], 16):
                body += (part := stream.read(size))
                self.received += part
                stream.readline()
            stream.readline()
        else:
            body = stream.read(int(named.get("content-length", 0)))
        return Asked(line, headers, body, number)


def created(upstream: Upstream, asked: Asked, connection: socket.socket) -> bool:
    """201, with a body that tells the first answer from a second."""
    body = b"effect %d" % upstream.effects(asked.body.decode("latin-1") or "-")
    connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    return True


class GatewayServer(Server):
    """`semel gateway` with some options."""

    def __init__(self, upstream: int, *options: str, rules: str = "", workers: int = 1, store: str = "") -> None:
        super().__init__()
        self.admin = free_port()
        self.rules = self.folder / "semel.toml"
        self.rules.write_text(rules)
        self._command = [
            *(sys.executable, "-m", "semel", "gateway", "--upstream", f"http://127.0.0.1:{upstream}"),
            *("--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}"),
            *("--store", store or f"sqlite:///{self.folder}/semel.db", "--rules", str(self.rules)),
            *("--workers", str(workers), *options),
        ]

    def prepare(self) -> None:
        """Nothing is needed."""

    def command(self) -> Sequence[str | Path]:
        return self._command

    def probe(self) -> None:
        assert f"listening on http://127.0.0.1:{self.port}" in self.said()

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tell(self, number: signal.Signals) -> None:
        """A signal for the supervisor, which is the process that a user knows."""
        assert self._process is not None
        self._process.send_signal(number)

    def ended(self) -> int:
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def workers(self) -> list[psutil.Process]:
        assert self._process is not None
        return workers_of(self._process.pid)

    def kill_workers(self) -> None:
        """SIGKILL to all of them; afterwards none of the old ones takes a connection."""
        workers = self.workers()
        for worker in workers:
            worker.kill()
        wait_until_dead(workers)

    def ask(self, method: str, path: str, body: bytes | None = None, *lines: str, port: int | None = None) -> Answer:
        with self.open(port) as connection:
            connection.sendall(request(method, path, body, *lines))
            return read(connection, method)

    def post(self, path: str, key: str | None, body: bytes = b"{}", *lines: str) -> Answer:
        named = [] if key is None else [f"Idempotency-Key: {key}"]
        return self.ask("POST", path, body, *named, *lines)

    @contextlib.contextmanager
    def open(self, port: int | None = None) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", port or self.port), timeout=PATIENCE_S) as connection:
            yield connection


def workers_of(pid: int) -> list[psutil.Process]:
    """Those of all generations. Workers are forked from a process of their own, which is called as they are."""
    found = list[psutil.Process]()
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = process.parent()
            if process.status() != psutil.STATUS_ZOMBIE and parent is not None and FORKS in " ".join(parent.cmdline()):
                found.append(process)
    return found


def request(method: str, path: str, body: bytes | None = None, *lines: str) -> bytes:
    head = [f"{method} {path} HTTP/1.1", "Host: shop.example", "Connection: close", *lines]
    if body is not None and not any(line.lower().startswith("transfer-encoding") for line in lines):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + (body or b"")


def read(connection: socket.socket, method: str = "POST") -> Answer:
    response = HTTPResponse(connection, method=method)
    response.begin()
    return Answer(response.status, response.getheaders(), response.read())


__all__ = ["Answer", "Asked", "GatewayServer", "Upstream", "created", "read", "request"]
