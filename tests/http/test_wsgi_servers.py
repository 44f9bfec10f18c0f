"""The WSGI front on real servers, over the wire: wsgiref, waitress and gunicorn with forked workers."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
from waitress.server import create_server
from wsgi_app import build

from waiting import until

Reply = tuple[int, list[tuple[str, str]], bytes]


class Server:
    """Where a server listens, what it has logged, and what its application has done."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port = port
        self.ledger = folder / "ledger"
        self.log = folder / "log"

    def post(self, body: bytes | Iterator[bytes], key: str = "k", path: str = "/pay", **headers: str) -> Reply:
        """Chunked when the body is an iterator."""
        return self.ask("POST", path, body, {"Idempotency-Key": key, **headers})

    def ask(self, method: str, path: str, body: bytes | Iterator[bytes], headers: dict[str, str]) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            moment = ("date", "server", "connection", "idempotent-replayed")
            return answer.status, [each for each in answer.getheaders() if each[0].lower() not in moment], answer.read()
        finally:
            connection.close()

    @property
    def effects(self) -> list[bytes]:
        return self.ledger.read_bytes().splitlines() if self.ledger.exists() else []


class Threads(ThreadingMixIn, WSGIServer):
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """After a close() that raises, which is logged, wsgiref looks for the environ that it has just forgotten."""


@contextmanager
def wsgiref_server(folder: Path) -> Iterator[Server]:
    log = (folder / "log").open("w", buffering=1)

    class Handler(WSGIRequestHandler):
        def log_message(self, *args: object) -> None: ...

        def get_stderr(self) -> object:  # type: ignore[override]
            return log

    app = build("memory://", str(folder / "ledger"))
    with log, make_server("127.0.0.1", 0, app, Threads, Handler) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
        thread.start()
        try:
            yield Server(server.server_port, folder)
        finally:
            server.shutdown()
            thread.join(10)


@contextmanager
def waitress_server(folder: Path) -> Iterator[Server]:
    handler = logging.FileHandler(folder / "log")
    logging.getLogger("waitress").addHandler(handler)
    server: Any = create_server(build("memory://", str(folder / "ledger")), host="127.0.0.1", port=0, threads=2)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield Server(int(server.effective_port), folder)
    finally:
        server.trigger.pull_trigger(server.close)  # in the server's own thread
        thread.join(10)
        logging.getLogger("waitress").removeHandler(handler)
        handler.close()


@contextmanager
def gunicorn_server(folder: Path) -> Iterator[Server]:
    """Two workers, forked from a process that has built the middleware already."""
    with socket.create_server(("127.0.0.1", 0)) as listener, (folder / "log").open("wb") as log:
        here, port = str(Path(__file__).parent), listener.getsockname()[1]
        settings = {"SEMEL_TEST_STORE": f"sqlite:///{folder}/keys.db", "SEMEL_TEST_LEDGER": str(folder / "ledger")}
        options = ["--preload", "-w", "2", "-k", "gthread", "--threads", "4", "--bind", f"fd://{listener.fileno()}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options, "--chdir", here, "wsgi_app:application"],
            env=os.environ | settings, stdout=log, stderr=log, pass_fds=[listener.fileno()],
        )  # fmt: skip
        try:
            yield Server(port, folder)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(15)


@pytest.fixture(params=[wsgiref_server, waitress_server, gunicorn_server])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with request.param(tmp_path) as server:
        yield server


def test_the_same_answer_on_the_wire(server: Server) -> None:
    first, again = server.post(b"five"), server.post(b"five")
    assert first == again
    assert first[0] == 201
    assert first[2] == b"k five"
    assert [value for name, value in first[1] if name == "X-A"] == ["1", "2"]
    assert server.post(b"six")[0] == 422
    assert server.effects == [b"five"]


def test_work_goes_on_after_the_server_has_ended_the_request(server: Server) -> None:
    status, headers, _ = server.post(b"slow", Prefer="respond-async")
    assert status == 202
    place = next(value for name, value in headers if name.lower() == "location")
    assert server.ask("GET", place, b"", {})[0] == 202
    assert server.post(b"other", key="other")[0] == 201, "its thread serves others meanwhile"
    Path(f"{server.ledger}.go").touch()
    until(lambda: server.ask("GET", place, b"", {})[0] != 202)
    done = server.ask("GET", place, b"", {})
    assert (done[0], done[2]) == (201, b"k slow")
    assert server.post(b"slow") == done
    assert sorted(server.effects) == [b"other", b"slow"]


def test_what_the_work_raises_is_answered_and_reaches_the_log_once(server: Server) -> None:
    first, again = server.post(b"boom"), server.post(b"boom")
    assert first == again
    assert first[0] == 500
    assert b"#internal-error" in first[2]
    assert server.effects == [b"boom"]
    assert server.post(b"next", key="next")[0] == 201
    until(lambda: "RuntimeError: boom" in server.log.read_text(), "nothing reached the log")  # after the answer
    assert server.log.read_text().count("RuntimeError: boom") == 1


def test_bodies_that_are_too_large_and_bodies_in_chunks(server: Server, request: pytest.FixtureRequest) -> None:
    assert server.post(b"x" * 1001)[0] == 413
    assert server.post(b"x" * 300_000)[0] == 413
    if "wsgiref" in request.node.name:
        return  # it cannot take chunks
    assert server.post(iter([b"in ", b"chunks"]))[2] == b"k in chunks"
    assert server.post(iter([b"x" * 600, b"x" * 600]), key="large")[0] == 413
    assert server.effects == [b"in chunks"]


def test_encoded_paths_are_different_paths_where_the_server_tells(
    server: Server, request: pytest.FixtureRequest
) -> None:
    server.post(b"five", path="/a/b")
    server.post(b"five", path="/a%2Fb")
    assert len(server.effects) == (1 if "wsgiref" in request.node.name else 2)


def test_many_at_once_and_one_effect(server: Server) -> None:
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(server.post, [b"five"] * 50))
    assert {reply[0] for reply in replies} <= {201, 409}
    assert server.effects == [b"five"]
    assert server.post(b"five")[2] == b"k five"
