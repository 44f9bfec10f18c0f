"""A restart refuses no caller. The long form is `PYTHONPATH=tests python -m gateway.restarts`."""

import fcntl
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest

from gateway.gatewaying import PATIENCE_S, Asked, GatewayServer, Upstream, created, read, request
from gateway.restarts import by_manager, by_signal, restart
from semel.gateway import GatewaySettings, SettingsInvalid, sockets
from semel.gateway.sockets import open_sockets
from waiting import until

KEEPING = request("POST", "/pay", b"idle").replace(b"Connection: close", b"Connection: keep-alive")
OFFERING = KEEPING.replace(b"Connection: keep-alive", b"Connection: Upgrade\r\nUpgrade: h2c")
"""As Java's client offers HTTP/2, in its first request on a connection."""
BRISK_S = 0.05


def late(upstream: Upstream, asked: Asked, connection: socket.socket) -> bool:
    upstream.go.wait(PATIENCE_S)
    return created(upstream, asked, connection)


def test_restarts_by_a_signal_refuse_no_caller_and_double_nothing() -> None:
    assert by_signal(2, pause_s=BRISK_S)["refused"] == 0


def test_restarts_by_a_service_manager_that_holds_the_socket_refuse_no_caller_and_double_nothing() -> None:
    assert by_manager(1, pause_s=BRISK_S)["refused"] == 0


def is_last_answer(connection: socket.socket) -> bool:
    """Whether the gateway says so, in the answer to another request."""
    connection.sendall(KEEPING)
    answer = read(connection)
    assert answer.status == 201
    return answer.header("connection") == "close"


def test_the_old_workers_finish_what_they_have_and_say_that_their_connections_end(upstream: Upstream, key: str) -> None:
    upstream.behaviours["/hold"] = late
    with (
        GatewayServer(upstream.port) as gateway,
        ThreadPoolExecutor(1) as threads,
        gateway.open() as idle,
        gateway.open() as unused,
    ):
        idle.sendall(KEEPING)
        assert read(idle).header("connection") is None
        held = threads.submit(gateway.post, "/hold", key, key.encode())
        upstream.wait_for(key)
        old = gateway.workers()
        restart(gateway)
        assert gateway.post("/pay", f"{key}2", b"new").status == 201
        for connection in (idle, unused):  # as a caller does that has not heard of the restart
            until(partial(is_last_answer, connection), "its connection does not end")
            assert connection.recv(1) == b""
        upstream.go.set()
        assert held.result().status == 201
        until(lambda: not any(worker in gateway.workers() for worker in old), "they did not end")
        assert gateway.ask("GET", "/-/readyz", port=gateway.admin).status == 200
    assert upstream.effects(key) == 1


def test_a_request_on_its_way_when_the_gateway_stops_is_answered(upstream: Upstream) -> None:
    with GatewayServer(upstream.port) as gateway, gateway.open() as unused, gateway.open() as idle:
        idle.sendall(KEEPING)
        assert read(idle).header("connection") is None
        gateway.tell(signal.SIGTERM)
        until(lambda: is_refused(gateway.port), "it still takes connections")
        for connection, sent in ((idle, KEEPING), (unused, OFFERING)):
            connection.sendall(sent)
            answer = read(connection)
            assert (answer.status, answer.header("connection")) == (201, "close")
        assert gateway.ended() == 0


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
    except ConnectionError:
        return True
    return False


@pytest.fixture
def restarted(upstream: Upstream) -> Iterator[GatewayServer]:
    with GatewayServer(upstream.port) as gateway:
        restart(gateway)
        until(lambda: len(gateway.workers()) == 1, "the old worker is still there")
        yield gateway


def test_a_successor_obeys_the_signals_that_the_first_process_gets(restarted: GatewayServer) -> None:
    assert restarted.ask("POST", "/pay", b"{}").status == 201
    restarted.rules.write_text("[policy]\nrequired = true\n")
    restarted.tell(signal.SIGHUP)
    until(lambda: restarted.ask("POST", "/pay", b"{}").status == 400, "the rules were not read")
    restarted.rules.write_text("[policy]\nrequired = 7\n")
    restarted.tell(signal.SIGUSR2)
    until(lambda: "the restart failed, and the gateway serves on as it is" in restarted.said(), "it said nothing")
    assert restarted.ask("POST", "/pay", b"{}").status == 400, "it serves on as it was"
    restarted.rules.write_text("")
    restart(restarted)
    until(lambda: restarted.ask("POST", "/pay", b"{}").status == 201, "the successor does not serve")
    restarted.tell(signal.SIGTERM)
    assert restarted.ended() == 0
    assert is_refused(restarted.port)
    assert "Traceback" not in restarted.said()


def test_a_successor_ends_with_the_first_process(restarted: GatewayServer) -> None:
    workers = restarted.workers()
    restarted.tell(signal.SIGKILL)
    restarted.ended()
    until(lambda: not any(is_alive(worker) for worker in workers), "they live")


def test_a_gateway_ends_with_the_successor_that_serves(restarted: GatewayServer) -> None:
    """So that its service manager starts it again."""
    parent = restarted.workers()[0].parent()
    assert parent is not None
    successor = parent.parent()
    assert successor is not None
    successor.kill()
    assert restarted.ended() == 1


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


HIGH_FD = 700


class Manager:
    """Hands sockets over as a service manager does, in the environment and by their numbers."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def hands_over(self, *found: socket.socket, names: str | None = None, pid: int | None = None) -> None:
        # Numbers that no thread of the tests gets for a file of its own meanwhile.
        first, *others = (fcntl.fcntl(each.fileno(), fcntl.F_DUPFD, HIGH_FD) for each in found)
        assert others == [first + number for number in range(1, len(found))]
        self._patch.setattr(sockets, "FIRST_FD", first)
        self._patch.setenv("LISTEN_PID", str(pid or os.getpid()))
        self._patch.setenv("LISTEN_FDS", str(len(found)))
        if names is not None:
            self._patch.setenv("LISTEN_FDNAMES", names)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    return Manager(monkeypatch)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def settings(**given: str) -> GatewaySettings:
    return GatewaySettings(upstream="http://h", store="sqlite:///x.db", **given)  # type: ignore[arg-type]


def test_the_sockets_of_a_service_manager_are_told_apart_by_name(manager: Manager, listening: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as admin:
        manager.hands_over(admin, listening, names="admin:semel.socket")
        found = open_sockets(settings())
        assert found.listen.getsockname() == listening.getsockname()
        assert found.admin is not None
        assert found.admin.getsockname() == admin.getsockname()
        assert not found.listen.get_inheritable()
        assert "LISTEN_FDS" not in os.environ
        found.close()


def test_sockets_for_another_process_are_left_alone(manager: Manager, listening: socket.socket) -> None:
    manager.hands_over(listening, pid=1)
    found = open_sockets(settings(listen="127.0.0.1:0"))
    assert found.listen.getsockname() != listening.getsockname()
    found.close()


def test_what_a_service_manager_hands_over_is_checked(manager: Manager, listening: socket.socket) -> None:
    manager.hands_over(listening)
    with pytest.raises(SettingsInvalid, match=r"--listen 127\.0\.0\.2:80: the service manager has handed over 127"):
        open_sockets(settings(listen="127.0.0.2:80"))
    manager.hands_over(listening, listening, names="a:b")
    with pytest.raises(SettingsInvalid, match=r"2 sockets \(a:b\): give one to listen on"):
        open_sockets(settings())
    with socket.create_connection(listening.getsockname()) as connected:
        manager.hands_over(connected)
        with pytest.raises(SettingsInvalid, match=r"not a listening TCP socket .* Accept=no"):
            open_sockets(settings())
