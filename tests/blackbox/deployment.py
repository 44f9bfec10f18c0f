"""What a run is played on: stores, server processes, and a fault proxy in front of each of them."""

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from semel import StoreUnavailable, open_store
from semel.store import Inspectable, Migratable, Store
from semel.testing.proxy import FaultProxy
from servers.postgres import PostgresServer
from servers.process import Server
from servers.redis import RedisServer

TESTS = Path(__file__).parents[1]
LEASE_S = 1.5
PROCESSES = 3
CONTROL = "none"
"""The arm without protection."""
STORE_TIMEOUT_MS = 1_000


class AppServer(Server):
    """One uvicorn process with the application."""

    def __init__(self, settings: dict[str, str]) -> None:
        super().__init__()
        self._settings = settings

    def prepare(self) -> None:
        """Nothing is needed."""

    def command(self) -> Sequence[str | Path]:
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        words = ("-m", "uvicorn", "--lifespan", "off", "--log-level", "error", "--port", str(self.port))
        return ["env", f"PYTHONPATH={TESTS}", *settings, sys.executable, *words, "blackbox.app:app"]

    def probe(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: box\r\nConnection: close\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 204")


@dataclass
class Deployment:
    servers: list[AppServer]
    doors: list[FaultProxy]
    """In front of the servers, in the same order: where clients knock."""
    databases: dict[str, PostgresServer | RedisServer]
    links: dict[str, FaultProxy]
    """Between the servers and those stores that are servers themselves."""
    stores: dict[str, Store]
    """Each store by a way around every fault."""
    ledger: Path

    @property
    def arms(self) -> list[str]:
        return [*self.stores, CONTROL]

    def in_progress(self) -> int:
        """Keys that say that somebody works on them."""
        counted = 0
        for store in self.stores.values():
            assert isinstance(store, Inspectable)
            with suppress(StoreUnavailable):  # an idle connection to a server that was restarted meanwhile
                counted += store.counts().in_progress
                continue
            counted += store.counts().in_progress
        return counted


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """Everything on free ports and in folders of its own; nothing is left afterwards."""
    with ExitStack() as stack:
        databases: dict[str, PostgresServer | RedisServer] = {
            "postgres": stack.enter_context(PostgresServer()),
            "redis": stack.enter_context(RedisServer()),
        }
        links = {name: stack.enter_context(FaultProxy(server.url)) for name, server in databases.items()}
        sqlite = f"sqlite:///{folder}/semel.db"
        urls = {name: f"{link.url}?timeout_ms={STORE_TIMEOUT_MS}" for name, link in links.items()} | {"sqlite": sqlite}
        stores = {name: open_store(server.url) for name, server in databases.items()} | {"sqlite": open_store(sqlite)}
        for store in stores.values():
            stack.callback(store.close)
            if isinstance(store, Migratable):
                store.migrate()
        ledger = folder / "ledger"
        ledger.touch()
        settings = {
            "SEMEL_BOX_LEDGER": str(ledger),
            "SEMEL_BOX_LEASE_S": str(LEASE_S),
            "SEMEL_BOX_STORES": json.dumps(urls),
        }
        servers = [AppServer(settings) for _ in range(PROCESSES)]
        for server in servers:
            stack.callback(server.stop)
            stack.callback(server.kill)  # in good order they would wait for everything that faults left open
        with ThreadPoolExecutor(PROCESSES) as threads:
            list(threads.map(AppServer.start, servers))
        doors = [stack.enter_context(FaultProxy(f"http://127.0.0.1:{server.port}")) for server in servers]
        yield Deployment(servers, doors, databases, links, stores, ledger)
