"""Requests that share a connection: each is an operation of its own, or none."""

import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import pytest
import uvicorn

from semel import current_operation
from semel.asgi import IdempotencyMiddleware
from semel.asgi.types import Receive, Scope, Send
from servers.process import free_port
from waiting import until

LARGE = 1_000_000
"""So much of a body that uvicorn stops reading, and goes on when it is asked for more."""


async def says_which(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body", False):
        pass
    operation = current_operation()
    body = json.dumps(operation and operation.key.name).encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    app: Any = IdempotencyMiddleware(says_which, store="memory://", identify=lambda scope: "shop")
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off", loop=request.param))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started, "the server did not start")
    yield port
    server.should_exit = True
    thread.join()


def post(key: str | None, size: int = 2) -> bytes:
    line = "" if key is None else f"Idempotency-Key: {key}\r\n"
    return f"POST /pay HTTP/1.1\r\nHost: x\r\n{line}Content-Length: {size}\r\n\r\n".encode() + b"x" * size


def answer(connection: socket.socket) -> object:
    response = HTTPResponse(connection)
    response.begin()
    return json.loads(response.read())


def test_a_request_behind_a_keyed_one_is_not_part_of_its_operation(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as stream:
        connection.sendall(post("first") + post(None) + post("other") + post(None))
        text = b""
        for _ in range(4):
            length = 0
            while line := stream.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            text += stream.read(length) + b" "
    assert text == b'"first" null "other" null '


@pytest.mark.parametrize("key", "abcde")
def test_nor_is_one_that_comes_later_on_its_connection(port: int, key: str) -> None:
    """The server waits for a body, gets more than it wants to hold, and reads on when it has the answer.

    How much comes at once is the system's affair: some of these end while more is held than wanted.
    """
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head, end, body = post(key, LARGE).partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\nExpect: 100-continue" + end)
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert answer(connection) == key
        connection.sendall(post(None))
        assert answer(connection) is None
