"""How long the gateway waits for a caller, and for how many of them at once. Sockets are real, and so is the time."""

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gateway.gatewaying import PATIENCE_S, Answer, Asked, GatewayServer, Upstream, created, read, request
from waiting import until

BRIEF_S = 0.4
"""What the gateway of these tests waits for. A caller of the tests that is not late is much faster."""
BRIEF = (
    *("--head-timeout", str(BRIEF_S), "--body-timeout", str(BRIEF_S), "--idle-timeout", str(BRIEF_S)),
    *("--send-timeout", "1", "--body-rate", "1000"),
)
HALF_HEAD = b"POST /pay HTTP/1.1\r\nHost: shop.exam"
KEYED = (
    b"POST /pay HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 100\r\nConnection: close\r\n"
    b"Idempotency-Key: %b\r\n\r\n"
)
UNKEYED = b"POST /pay HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 100\r\nConnection: close\r\n\r\n"


class FewDescriptors(GatewayServer):
    """A gateway whose processes may open 256 files each, which is what some systems give to a process."""

    def command(self) -> Sequence[str | Path]:
        shell = shutil.which("sh")
        assert shell is not None
        return [shell, "-c", 'ulimit -n 256; exec "$@"', "sh", *super().command()]


@pytest.fixture(scope="module")
def brief() -> Iterator[tuple[GatewayServer, Upstream]]:
    upstream = Upstream()
    with GatewayServer(upstream.port, *BRIEF, rules='[tenant]\nheader = "X-Account"') as gateway:
        yield gateway, upstream
    upstream.close()


def drip(connection: socket.socket, data: bytes) -> None:
    """Send a byte now and then, until all is sent or the gateway does not want more."""
    with contextlib.suppress(ConnectionError):
        for byte in data:
            connection.sendall(bytes((byte,)))
            time.sleep(0.05)


def end(connection: socket.socket) -> bytes:
    """All that the gateway says until it closes."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            said += part
    return said


@pytest.mark.parametrize("sent", [b"P", HALF_HEAD, b"\r\n"])
def test_a_head_that_does_not_come_is_408(brief: tuple[GatewayServer, Upstream], sent: bytes) -> None:
    gateway, upstream = brief
    with gateway.open() as connection:
        connection.sendall(sent)
        answer = read(connection)
        assert (answer.status, answer.header("connection")) == (408, "close")
        assert b"head of the request did not arrive within 0.4 s" in answer.body
        assert connection.recv(1) == b""
    assert upstream.asked == []


@pytest.mark.parametrize("data", [HALF_HEAD * 3, b"\r\n" * 40])
def test_the_bound_is_for_the_whole_head(brief: tuple[GatewayServer, Upstream], data: bytes) -> None:
    """A caller that sends a byte now and then would be waited for as long as it likes."""
    gateway, _ = brief
    with gateway.open() as connection:
        began = time.monotonic()
        drip(connection, data)
        said = end(connection)
    assert time.monotonic() - began < len(data) * 0.05 + PATIENCE_S
    assert said == b"" or said.startswith(b"HTTP/1.1 408 ")  # a byte on a closed connection may take the answer away
    assert b"201" not in said


@pytest.mark.parametrize("keyed", [True, False])
def test_a_body_that_does_not_come_is_408(brief: tuple[GatewayServer, Upstream], keyed: bool, key: str) -> None:
    gateway, upstream = brief
    head = KEYED % key.encode() if keyed else UNKEYED
    with gateway.open() as connection:
        connection.sendall(head + key.encode())
        answer = read(connection)
        assert (answer.status, answer.header("connection")) == (408, "close")
        assert b"body of the request" in answer.body
    if keyed:
        assert upstream.effects(key) == 0
        assert gateway.post("/pay", key, key.encode()).status == 201, "the key was not taken by half a request"
        assert upstream.effects(key) == 1


def test_a_body_that_drips_is_408(brief: tuple[GatewayServer, Upstream], key: str) -> None:
    """20 bytes a second are less than 1 000, so they do not buy the caller any time to speak of."""
    gateway, upstream = brief
    with gateway.open() as connection:
        connection.sendall(KEYED % key.encode())
        drip(connection, b"x" * 99)
        said = end(connection)
    assert said == b"" or said.startswith(b"HTTP/1.1 408 ")
    assert gateway.post("/pay", key, key.encode()).status == 201
    assert upstream.effects(key) == 1


def test_a_body_may_take_longer_when_there_is_more_of_it(brief: tuple[GatewayServer, Upstream], key: str) -> None:
    """1 500 bytes earn one and a half second: more than three times the bound."""
    gateway, upstream = brief
    body = key.encode() + b"x" * 1468
    with gateway.open() as connection:
        connection.sendall((KEYED % key.encode()).replace(b"100", b"1500"))
        for at in range(0, 1500, 50):
            connection.sendall(body[at : at + 50])
            time.sleep(0.03)
        assert read(connection).status == 201
    assert upstream.effects(key) == 1


def test_time_in_which_the_gateway_does_not_read_is_not_the_caller_s() -> None:
    """An upload waits for an upstream that takes nothing for a while; then it goes on."""
    upstream = Upstream()
    size, go = 32 * 1024 * 1024, threading.Event()

    def stalled(_: Upstream, __: Asked, connection: socket.socket) -> None:
        """The head has come, and nothing of the body is read for a while."""
        assert go.wait(PATIENCE_S)
        left = size
        while left:
            left -= len(connection.recv(1_000_000))
        connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")

    upstream.unread["/upload"] = stalled
    # Nothing is earned by what has been sent. The gateway looks after 2 s and after 4 s.
    options = ("--body-timeout", "2", "--body-rate", "1000000000")
    with GatewayServer(upstream.port, *options) as gateway, gateway.open() as connection:
        began = time.monotonic()
        connection.sendall(request("POST", "/upload", None, f"Content-Length: {size}"))
        connection.settimeout(0.05)
        sent, last = 0, time.monotonic()
        while time.monotonic() < max(began + 3, last + 0.5):
            with contextlib.suppress(TimeoutError):
                sent += connection.send(b"x" * min(65_536, size - sent))
                last = time.monotonic()
        assert sent < size, "the gateway took in what the upstream does not read"
        go.set()
        connection.settimeout(PATIENCE_S)
        connection.sendall(b"x" * (size - sent - 1))
        while time.monotonic() < began + 4.2:
            time.sleep(0.05)
        connection.sendall(b"x")
        assert read(connection).status == 201
    upstream.close()


def test_an_idle_connection_is_closed_without_a_word(brief: tuple[GatewayServer, Upstream], key: str) -> None:
    """An answer that nobody asked for would be taken for the answer to the next request."""
    gateway, _ = brief
    with gateway.open() as fresh, gateway.open() as used:
        used.sendall(request("POST", "/pay", key.encode()).replace(b"Connection: close\r\n", b""))
        assert read(used).status == 201
        assert (end(fresh), end(used)) == (b"", b"")


def test_a_slow_answer_is_not_an_idle_caller(brief: tuple[GatewayServer, Upstream], key: str) -> None:
    gateway, upstream = brief

    def late(behind: Upstream, asked: Asked, connection: socket.socket) -> bool:
        time.sleep(3 * BRIEF_S)
        return created(behind, asked, connection)

    upstream.behaviours["/late"] = late
    with gateway.open() as connection:
        first = request("POST", "/late", key.encode()).replace(b"Connection: close\r\n", b"")
        connection.sendall(first + b"GET /next HTTP/1.1\r\nHost: x")  # half a head, while the first is served
        assert read(connection).status == 201
        connection.sendall(b"\r\nConnection: close\r\n\r\n")
        assert read(connection).status == 201
    assert upstream.effects(key) == 1


def test_half_a_head_behind_a_served_request_has_its_time_after_the_answer(
    brief: tuple[GatewayServer, Upstream], key: str
) -> None:
    gateway, _ = brief
    with gateway.open() as connection:
        first = request("POST", "/pay", key.encode()).replace(b"Connection: close\r\n", b"")
        connection.sendall(first + HALF_HEAD)
        assert [read(connection).status, read(connection).status] == [201, 408]


def test_an_answer_that_the_caller_does_not_take_is_dropped(brief: tuple[GatewayServer, Upstream]) -> None:
    gateway, upstream = brief
    broken: list[Exception] = []

    def flood(_: Upstream, __: Asked, connection: socket.socket) -> None:
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b"x" * 65_536)
        except OSError as error:
            broken.append(error)

    upstream.behaviours["/flood"] = flood
    with gateway.open() as connection:
        connection.sendall(request("GET", "/flood"))
        until(lambda: broken, "the gateway waits for ever until the caller takes its answer")


def half_sent(gateway: GatewayServer, stack: contextlib.ExitStack, data: Sequence[bytes]) -> None:
    for part in data:
        connection = stack.enter_context(gateway.open())
        with contextlib.suppress(ConnectionError):
            connection.sendall(part)


@pytest.mark.parametrize("data", [HALF_HEAD, b""], ids=["half a head", "nothing"])
def test_callers_that_stop_half_way_do_not_stop_others(data: bytes, key: str) -> None:
    """300 of them, with 256 descriptors. None of the bounds on time ends within the test."""
    upstream = Upstream()
    with contextlib.ExitStack() as stack:
        gateway = stack.enter_context(FewDescriptors(upstream.port))
        for round_ in range(3):
            half_sent(gateway, stack, [data] * 100)
            answers = [gateway.post("/pay", f"{key}-{round_}-{each}", key.encode()) for each in range(5)]
            assert [answer.status for answer in answers] == [201] * 5
        assert upstream.effects(key) == 15
    upstream.close()


def test_bodies_that_stand_still_give_way_when_the_gateway_is_full(key: str) -> None:
    upstream = Upstream()
    with contextlib.ExitStack() as stack:
        gateway = stack.enter_context(GatewayServer(upstream.port, "--connections-max", "5"))
        half_sent(gateway, stack, [KEYED % f"{key}-{each}".encode() + b"x" for each in range(5)])
        refused = answered(gateway, key)
        assert refused is None or refused.status == 503  # they have just begun
        until(lambda: (answer := answered(gateway, key)) is not None and answer.status == 201)
        assert upstream.effects(key) == 1
    upstream.close()


def answered(gateway: GatewayServer, key: str) -> Answer | None:
    with contextlib.suppress(ConnectionError):
        return gateway.post("/pay", key, key.encode())
    return None


def test_the_connections_of_callers_have_a_bound(key: str) -> None:
    """Callers whose requests run do not give way: the next one is refused."""
    upstream = Upstream()

    def held(behind: Upstream, asked: Asked, connection: socket.socket) -> bool:
        return behind.go.wait(PATIENCE_S) and created(behind, asked, connection)

    upstream.behaviours["/held"] = held
    with contextlib.ExitStack() as stack:
        gateway = stack.enter_context(GatewayServer(upstream.port, "--connections-max", "3"))
        connections = [stack.enter_context(gateway.open()) for _ in range(3)]
        for each in connections:
            each.sendall(request("POST", "/held", key.encode()))
        upstream.wait_for(key, 3)
        with gateway.open() as one_more:
            said = read(one_more)
        assert (said.status, said.header("connection")) == (503, "close")
        assert b"3 connections" in said.body
        upstream.go.set()
        assert [read(each).status for each in connections] == [201] * 3
        assert gateway.post("/pay", key, key.encode()).status == 201
        assert upstream.effects(key) == 4
    upstream.close()
