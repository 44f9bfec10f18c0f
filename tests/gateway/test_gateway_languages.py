"""In front of services that were written without a thought of it: Node, and the standard library's HTTP/1.0 server."""

import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.gatewaying import GatewayServer
from servers.process import Server

HERE = Path(__file__).parent
NODE = shutil.which("node")
COMMANDS = {
    "http.server": [sys.executable, str(HERE / "service.py")],
    "node": [NODE or "node", str(HERE / "service.js")],
}


class Service(Server):
    def __init__(self, language: str) -> None:
        super().__init__()
        self._language = language
        self.ledger = self.folder / "ledger"
        self.ledger.touch()

    def prepare(self) -> None:
        """Nothing is needed."""

    def command(self) -> Sequence[str | Path]:
        return [*COMMANDS[self._language], str(self.port), str(self.ledger)]

    def probe(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), timeout=1).close()

    def effects(self, text: str) -> int:
        return self.ledger.read_text().splitlines().count(text)


@pytest.fixture(
    scope="module",
    params=["http.server", pytest.param("node", marks=pytest.mark.skipif(NODE is None, reason="there is no node"))],
)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[GatewayServer, Service]]:
    with Service(request.param) as service, GatewayServer(service.port, workers=2) as gateway:
        yield gateway, service


@pytest.mark.parametrize("path", ["/pay", "/stream"])
def test_a_repeat_gets_the_first_answer(pair: tuple[GatewayServer, Service], key: str, path: str) -> None:
    gateway, service = pair
    first, again = (gateway.post(path, key, key.encode()) for _ in range(2))
    assert (first.header("idempotent-replayed"), again.header("idempotent-replayed")) == (None, "true")
    assert (again.status, again.body) == (first.status, first.body)
    assert again.header("x-key") == first.header("x-key")
    assert gateway.post(path, key, b"other").status == 422
    assert service.effects(key) == 1


def test_twenty_at_once_take_effect_once(pair: tuple[GatewayServer, Service], key: str) -> None:
    gateway, service = pair
    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda _: gateway.post("/pay", key, key.encode()), range(20)))
    assert {answer.status for answer in answers} <= {201, 409}
    assert len({answer.body for answer in answers if answer.status == 201}) == 1
    assert service.effects(key) == 1


def test_without_a_key_everything_runs(pair: tuple[GatewayServer, Service], key: str) -> None:
    gateway, service = pair
    assert [gateway.post("/pay", None, key.encode()).status for _ in range(2)] == [201, 201]
    assert service.effects(key) == 2
