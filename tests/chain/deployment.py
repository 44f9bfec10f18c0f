"""What a run is played on: PostgreSQL, a broker, two services, two relays, and consumers for each arm."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from chain.brokers import BROKERS, Broker
from chain.setting import BARE, INBOX, MARK_FIRST, TABLES, Setting
from semel import open_store
from semel.store import Migratable
from servers.nats import NatsServer
from servers.postgres import PostgresServer
from servers.process import Server, free_port
from servers.rabbitmq import RabbitmqServer
from servers.redis import RedisServer

TESTS = Path(__file__).parents[1]
SERVERS: dict[str, Callable[[], RabbitmqServer | NatsServer | RedisServer]] = {
    "rabbitmq": RabbitmqServer,
    "nats": NatsServer,
    "redis": RedisServer,
}


class Worker:
    """One process of the chain. It is killed and started again; what it logs goes to one file."""

    def __init__(self, name: str, words: Sequence[str], setting: Setting, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._words = words
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self._environment = {**os.environ, **setting.environment(), "PYTHONPATH": path}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._words], env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was started"
        return self._process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """In good order, within ten seconds."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


class Service(Worker):
    def __init__(self, name: str, port: int, setting: Setting, folder: Path) -> None:
        words = ["-m", "uvicorn", "--log-level", "error", "--port", str(port), "chain.service:app"]
        super().__init__(name, words, setting, folder)
        self.port = port

    def answers(self) -> bool:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)) as connection:
                connection.request("GET", "/")
                return connection.getresponse().status == 204
        except OSError:
            return False


@dataclass
class Deployment:
    setting: Setting
    database: PostgresServer
    broker_server: Server
    broker: Broker
    services: list[Service]
    workers: list[Worker]
    """All processes that are killed."""

    def keep_logs(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for worker in self.workers:
            shutil.copy(worker.log, folder)
        shutil.copy(self.database.log, folder / "database.log")
        shutil.copy(self.broker_server.log, folder / "broker.log")


@contextmanager
def deployed(folder: Path, kind: str) -> Iterator[Deployment]:
    """Everything on free ports and in folders of its own, with tables and queues, and no process of ours running."""
    with ExitStack() as stack:
        database = stack.enter_context(PostgresServer("deadlock_timeout=100ms"))
        server = SERVERS[kind]()
        stack.enter_context(server)
        broker = BROKERS[kind](server.url)
        setting = Setting(database.url, kind, server.url, broker.publisher_url)
        store = open_store(database.url)
        assert isinstance(store, Migratable)
        store.migrate()
        store.close()
        with psycopg.connect(database.url, autocommit=True) as connection:
            for statement in TABLES:
                connection.execute(statement.encode())
        services = [Service(f"service-{number}", free_port(), setting, folder) for number in (1, 2)]
        arms = (INBOX, INBOX, MARK_FIRST, BARE) if broker.has_controls else (INBOX, INBOX)
        workers: list[Worker] = [
            *services,
            *(Worker(f"relay-{number}", ["-m", "chain.relayer"], setting, folder) for number in (1, 2)),
            *(
                Worker(f"consumer-{number}-{arm}", ["-m", "chain.consumer", arm], setting, folder)
                for number, arm in enumerate(arms, 1)
            ),
        ]
        for worker in workers:
            stack.callback(worker.stop)
        yield Deployment(setting, database, server, broker, services, workers)
