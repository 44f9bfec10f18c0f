"""The fault proxy does what each fault says, as a client and a server see it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from semel.testing.proxy import Fault, FaultProxy, ProxyExchange

PATIENCE_S = 20.0


class Echo:
    """Answers each chunk with itself, and remembers what reached it."""

    def __init__(self) -> None:
        self.reached: list[bytes] = []
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"echo://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def wait_for(self, *requests: bytes) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.reached == list(requests), PATIENCE_S), self.reached

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while request := connection.recv(1000):
                with self._changed:
                    self.reached.append(request)
                    self._changed.notify_all()
                connection.sendall(request)


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy(echo.url) as proxy:
        yield proxy


@contextmanager
def connected(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as client:
        client.sendall(b"hello")
        assert client.recv(1000) == b"hello"
        yield client


def silent(client: socket.socket) -> bool:
    """Nothing came for a moment. What should not come must be given a chance to come."""
    client.settimeout(0.05)
    try:
        client.recv(1000)
    except TimeoutError:
        return True
    finally:
        client.settimeout(PATIENCE_S)
    return False


def test_a_cut_before_never_reaches_the_server(echo: Echo, proxy: FaultProxy) -> None:
    with connected(proxy) as client:
        injected = proxy.inject(Fault.CUT_BEFORE)
        client.sendall(b"lost")
        with pytest.raises(ConnectionResetError):
            client.recv(1000)
    with connected(proxy):
        assert echo.reached == [b"hello", b"hello"]
        assert injected.hits == 1


def test_a_cut_after_reaches_the_server(echo: Echo, proxy: FaultProxy) -> None:
    with connected(proxy) as client:
        proxy.inject(Fault.CUT_AFTER)
        client.sendall(b"done")
        with pytest.raises(ConnectionResetError):
            client.recv(1000)
    assert echo.reached == [b"hello", b"done"]


def test_a_delay_is_only_late(echo: Echo, proxy: FaultProxy) -> None:
    with connected(proxy) as client:
        proxy.inject(Fault.DELAY, delay_s=0.05)
        client.sendall(b"late")
        assert client.recv(1000) == b"late"


def test_a_held_request_arrives_although_its_client_has_left(echo: Echo, proxy: FaultProxy) -> None:
    with connected(proxy) as client:
        held = proxy.inject(Fault.HOLD_REQUEST)
        client.sendall(b"held")
        assert held.wait()
        assert silent(client)
    assert echo.reached == [b"hello"]
    proxy.let_go()
    echo.wait_for(b"hello", b"held")


def test_a_held_reply(echo: Echo, proxy: FaultProxy) -> None:
    with connected(proxy) as client:
        proxy.inject(Fault.HOLD_REPLY)
        client.sendall(b"held")
        echo.wait_for(b"hello", b"held")
        assert silent(client)
        proxy.let_go()
        assert client.recv(1000) == b"held"


def test_a_half_closed_connection_still_takes_requests(echo: Echo, proxy: FaultProxy) -> None:
    with connected(proxy) as client:
        proxy.inject(Fault.HALF_CLOSE)
        client.sendall(b"one")
        assert client.recv(1000) == b""
        client.sendall(b"two")
        echo.wait_for(b"hello", b"one", b"two")


def test_a_garbled_reply(proxy: FaultProxy) -> None:
    with connected(proxy) as client:
        proxy.inject(Fault.GARBLE)
        client.sendall(b"\x00\xff")
        assert client.recv(1000) == b"\xff\x00"
        client.sendall(b"clear")
        assert client.recv(1000) == b"clear"


def test_a_script_may_look_at_the_exchange(proxy: FaultProxy) -> None:
    def second_of_the_first(exchange: ProxyExchange) -> bool:
        return (exchange.connection, exchange.number) == (1, 2)

    proxy.inject(Fault.GARBLE, when=second_of_the_first)
    proxy.inject(Fault.GARBLE, when=lambda exchange: b"find me" in exchange.request, times=None)
    with connected(proxy) as first, connected(proxy) as second:
        for _ in range(2):
            second.sendall(b"find me")
            assert second.recv(1000) != b"find me"
        for client, clear in ((second, True), (first, False), (first, True)):
            client.sendall(b"text")
            assert (client.recv(1000) == b"text") is clear
        proxy.clear()
        second.sendall(b"find me")
        assert second.recv(1000) == b"find me"


def test_the_whole_link_may_be_held_or_cut(echo: Echo, proxy: FaultProxy) -> None:
    with connected(proxy) as one, connected(proxy) as two:
        proxy.hold()
        one.sendall(b"held")
        assert silent(one)
        assert echo.reached == [b"hello", b"hello"]
        proxy.let_go()
        assert one.recv(1000) == b"held"
        assert proxy.cut() == 2
        for client in (one, two):
            with pytest.raises(ConnectionResetError):
                client.recv(1000)
        assert proxy.connections == 2


def test_nobody_behind_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"echo://user:word@127.0.0.1:{listener.getsockname()[1]}/path"
    with FaultProxy(url) as proxy:
        assert proxy.url == f"echo://user:word@127.0.0.1:{proxy.port}/path"
        with (
            pytest.raises(ConnectionResetError),  # at once, so perhaps before the client knows that it is connected
            socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S) as client,
        ):
            client.recv(1000)


def test_a_url_without_a_port_is_refused() -> None:
    with pytest.raises(ValueError, match="name the host and the port"):
        FaultProxy("redis://localhost/0")
