"""A request is sent once: what the caller and repeats are told when its answer does not come. Effects are counted."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.gatewaying import PATIENCE_S, Answer, Asked, GatewayServer, Upstream, created, request
from servers.process import free_port
from waiting import until


def cut(_: Upstream, __: Asked, ___: socket.socket) -> None:
    """Takes the request in, and closes without an answer."""


def half(_: Upstream, __: Asked, connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\n12345")


def half_chunked(_: Upstream, __: Asked, connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n")


def garbage(_: Upstream, __: Asked, connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def problem(answer: Answer) -> str:
    assert answer.header("content-type") == "application/problem+json"
    return answer.body.partition(b"#")[2].partition(b'"')[0].decode()


@pytest.mark.parametrize("lost", [cut, half, half_chunked, garbage])
def test_a_lost_answer_is_an_unknown_outcome(
    gateway: GatewayServer, upstream: Upstream, key: str, lost: object
) -> None:
    upstream.behaviours["/brief/pay"] = lost  # type: ignore[assignment]
    first = gateway.post("/brief/pay", key, key.encode())
    assert (first.status, problem(first), first.header("retry-after")) == (504, "interrupted", None)
    upstream.behaviours.clear()
    while (again := gateway.post("/brief/pay", key, key.encode())).status == 409 and problem(again) == "in-progress":
        pass
    assert (again.status, problem(again)) == (409, "outcome-unknown")
    assert problem(gateway.post("/brief/pay", key, b"another")) == "key-reused"
    assert upstream.effects(key) == 1


def test_an_upstream_that_does_not_answer_in_time_is_not_waited_for(upstream: Upstream, key: str) -> None:
    def never(behind: Upstream, _: Asked, __: socket.socket) -> None:
        behind.go.wait(60)

    upstream.behaviours["/pay"] = never
    with GatewayServer(upstream.port, "--timeout", "0.2") as gateway:
        assert problem(gateway.post("/pay", key, key.encode())) == "interrupted"
        assert problem(gateway.post("/pay", key, key.encode())) == "in-progress", "until its lease has lapsed"
    upstream.go.set()
    assert upstream.effects(key) == 1


def test_an_upstream_that_does_not_take_the_request_is_not_waited_for(key: str) -> None:
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()  # the kernel connects, and nobody ever reads
        rules = "[policy]\nbody_max = 50_000_000\n"
        with GatewayServer(deaf.getsockname()[1], "--timeout", "0.5", rules=rules) as gateway:
            body = bytes(20_000_000)  # more than the buffers on the way can hold
            assert problem(gateway.post("/pay", key, body)) == "interrupted"
            assert "it did not take the request in time" in gateway.said()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("keyed", [True, False])
def test_a_kept_connection_that_closes_is_no_reason_to_send_again(
    gateway: GatewayServer, upstream: Upstream, key: str, method: str, keyed: bool
) -> None:
    """What HTTP calls idempotent would be repeated by the library beneath."""
    upstream.behaviours["/brief/pay"] = cut
    lines = [f"Idempotency-Key: {key}"] if keyed else []
    assert gateway.ask("POST", "/warm", b"warm").status == 201
    warm = upstream.asked[-1].connection
    answer = gateway.ask(method, "/brief/pay", key.encode(), *lines)
    assert (answer.status, problem(answer)) == (504, "interrupted")
    assert upstream.asked[-1].connection == warm, "the point was to use a kept connection"
    assert upstream.effects(key) == 1


def test_at_least_once_sends_again_with_the_same_downstream_key(
    gateway: GatewayServer, upstream: Upstream, key: str
) -> None:
    upstream.behaviours["/again/pay"] = cut
    assert gateway.post("/again/pay", key, key.encode()).status == 504
    upstream.behaviours.clear()
    while (again := gateway.post("/again/pay", key, key.encode())).status == 409:
        assert problem(again) == "in-progress"
    assert (again.status, again.body) == (201, b"effect 2")
    assert gateway.post("/again/pay", key, key.encode()).header("idempotent-replayed") == "true"
    sent = [asked.all("idempotency-key") for asked in upstream.asked if asked.body == key.encode()]
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert sent[0] != [key]


def test_nothing_was_sent_so_the_key_is_given_back(key: str) -> None:
    nobody = free_port()
    with GatewayServer(nobody) as gateway:
        for _ in range(2):
            refused = gateway.post("/pay", key, key.encode())
            assert (refused.status, problem(refused), refused.header("retry-after")) == (502, "unreachable", "1")
        assert gateway.ask("GET", "/").status == 502
        with socket.create_server(("127.0.0.1", nobody)) as listener, ThreadPoolExecutor(1) as threads:
            listener.settimeout(PATIENCE_S)
            answer = threads.submit(gateway.post, "/pay", key, key.encode())
            connection, _ = listener.accept()
            with connection:
                assert key.encode() in connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok")
            assert (answer.result().status, answer.result().header("idempotent-replayed")) == (201, None)


def test_without_a_key_a_lost_answer_is_told_and_a_begun_one_is_cut(
    gateway: GatewayServer, upstream: Upstream, key: str
) -> None:
    def half_of_much(_: Upstream, __: Asked, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 100000\r\n\r\n12345")

    upstream.behaviours |= {"/cut": cut, "/half": half, "/chunked": half_chunked, "/much": half_of_much}
    assert problem(gateway.post("/cut", None, key.encode())) == "interrupted"
    assert upstream.effects(key) == 1
    assert (
        problem(gateway.post("/half", None, b"{}")) == "interrupted"
    )  # none of a small one is passed on before the rest
    for path, begun in (("/chunked", b"5\r\n12345\r\n"), ("/much", b"12345")):
        with gateway.open() as connection:
            connection.sendall(request("POST", path, b"{}"))
            received = b""
            while part := connection.recv(65_536):
                received += part
        assert received.endswith(b"\r\n\r\n" + begun)


def test_an_answer_too_large_to_keep_that_is_cut_is_never_sent_again(
    gateway: GatewayServer, upstream: Upstream, key: str
) -> None:
    def large(_: Upstream, __: Asked, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n" + b"x" * 5_000)

    upstream.behaviours["/small/pay"] = large
    with gateway.open() as connection:
        connection.sendall(request("POST", "/small/pay", key.encode(), f"Idempotency-Key: {key}"))
        received = b""
        while part := connection.recv(65_536):
            received += part
    assert received.endswith(b"x" * 5_000)
    assert problem(gateway.post("/small/pay", key, key.encode())) == "result-not-kept"
    assert upstream.effects(key) == 1


def test_a_caller_who_leaves_does_not_stop_keyed_work(gateway: GatewayServer, upstream: Upstream, key: str) -> None:
    def late(behind: Upstream, asked: Asked, connection: socket.socket) -> bool:
        behind.go.wait(20)
        return created(behind, asked, connection)

    upstream.behaviours["/pay"] = late
    with gateway.open() as connection:
        connection.sendall(request("POST", "/pay", key.encode(), f"Idempotency-Key: {key}"))
        upstream.wait_for(key)
    upstream.go.set()
    until(lambda: gateway.post("/pay", key, key.encode()).status == 201, "the answer was lost")
    assert upstream.effects(key) == 1


def test_a_request_behind_a_keyed_one_is_passed_on_without_its_key(
    gateway: GatewayServer, upstream: Upstream, key: str
) -> None:
    """What the upstream would take for a repeat of another caller's request."""
    keyed, plain = (
        request("POST", "/pay", key.encode(), *lines).replace(b"Connection: close\r\n", b"", end)
        for lines, end in (([f"Idempotency-Key: {key}"], 1), ([], 0))
    )
    with gateway.open() as connection:
        connection.sendall(keyed + plain)
        with connection.makefile("rb") as stream:
            assert stream.read().count(b"HTTP/1.1 201") == 2
    first, second = (asked for asked in upstream.asked if key.encode() in asked.body)
    assert len(first.all("idempotency-key")) == 1
    assert second.all("idempotency-key") == []
