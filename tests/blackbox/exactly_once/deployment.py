"""What a run is played on: two servers for tasks, one for threads, PostgreSQL behind proxies, and SQLite."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from blackbox.deployment import TESTS
from blackbox.exactly_once.orders import ACCOUNTS, ARMS, CONTROL, Arm
from semel import open_store
from semel.store import Migratable
from semel.testing.proxy import FaultProxy
from servers.postgres import PostgresServer
from servers.process import Server

ASYNC_SERVERS = 2
CREATE = (
    "CREATE TABLE payments (arm text, name text, run text, position integer)",
    "CREATE TABLE accounts (id integer PRIMARY KEY, balance integer)",
    *(f"INSERT INTO accounts VALUES ({number}, 0)" for number in range(ACCOUNTS)),
)
ROWS = "SELECT arm, name, run, position FROM payments"
OPEN = """SELECT state || ': ' || left(query, 60) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND state LIKE '%in transaction%'"""
END_ONE = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY random() LIMIT 1"""
Rows = Mapping[tuple[str, str], list[tuple[str, int]]]
"""By arm and key: the run and the position of every committed row."""


class PaymentServer(Server):
    """One process with the service."""

    def __init__(self, settings: Mapping[str, str], *, in_threads: bool) -> None:
        super().__init__()
        self.in_threads = in_threads
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self._settings = {**settings, "SEMEL_BOX_PORT": str(self.port), "PYTHONPATH": path}

    def prepare(self) -> None:
        """Nothing is needed."""

    def command(self) -> Sequence[str | Path]:
        settings = [f"{name}={value}" for name, value in self._settings.items()]
        if self.in_threads:
            words = ["-m", "blackbox.exactly_once.thread_app"]
        else:
            words = ["-m", "uvicorn", "--log-level", "error", "--port", str(self.port)]
            words += ["--timeout-graceful-shutdown", "1", "blackbox.exactly_once.async_app:app"]
        return ["env", *settings, sys.executable, *words]

    def probe(self) -> None:
        assert ask(self.port, "lent") is not None


def ask(port: int, path: str) -> dict[str, int]:
    """What a server says about its pools; for `block` its event loop stands still first."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with closing(connection):
        connection.request("GET", f"/{path}")
        told: dict[str, int] = json.loads(connection.getresponse().read())
        return told


@dataclass
class Deployment:
    arms: Sequence[Arm]
    """Those that are called."""
    servers: list[PaymentServer]
    postgres: PostgresServer
    links: dict[str, FaultProxy]
    """By arm: between the servers and PostgreSQL."""
    sqlite: Path
    journal: Path

    def ports(self, arm: str) -> list[int]:
        in_threads = any(known.name == arm and known.in_threads for known in ARMS)
        return [server.port for server in self.servers if server.in_threads == in_threads]

    def rows(self) -> Rows:
        """By a way around every fault."""
        found: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
        with psycopg.connect(self.postgres.url) as connection:
            rows = connection.execute(ROWS).fetchall()
        with closing(sqlite3.connect(self.sqlite)) as file:
            rows += file.execute(ROWS).fetchall()
        for arm, name, run, position in rows:
            found[arm, name].append((run, position))
        return found

    def open_transactions(self) -> list[str]:
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            return [told for (told,) in connection.execute(OPEN)]

    def end_backend(self) -> bool:
        """`pg_terminate_backend` for one connection, whichever it is."""
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            return connection.execute(END_ONE).fetchone() is not None

    def lent(self) -> list[str]:
        """Connections that are not back in their pools."""
        told: list[str] = []
        for server in self.servers:
            try:
                counts = ask(server.port, "lent")
            except (OSError, ValueError) as error:
                told.append(f"the server on {server.port} does not say: {error}")
            else:
                told += [f"{arm} on {server.port}: {count}" for arm, count in counts.items() if count]
        return told

    def keep_logs(self, folder: Path) -> None:
        """What the servers logged, and the journal, for whoever looks into a violation."""
        folder.mkdir(parents=True, exist_ok=True)
        for server in self.servers:
            shutil.copy(server.log, folder / f"server-{server.port}.log")
        shutil.copy(self.journal, folder / "journal.tsv")


@contextmanager
def deployed(folder: Path, seed: int, arms: Sequence[Arm] = ARMS, fault: str = "") -> Iterator[Deployment]:
    """Everything on free ports and in folders of its own. `fault` is seeded into the servers."""
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer("deadlock_timeout=100ms"))
        links = {arm.name: stack.enter_context(FaultProxy(postgres.url)) for arm in ARMS if arm.database == "postgres"}
        sqlite, journal = folder / "shop.db", folder / "journal"
        journal.touch()
        _create(postgres.url, sqlite)
        urls = {arm.name: links[arm.name].url if arm.name in links else f"sqlite:///{sqlite}" for arm in ARMS}
        settings = {
            "SEMEL_BOX_URLS": json.dumps(urls | {CONTROL: postgres.url}),
            "SEMEL_BOX_JOURNAL": str(journal),
            "SEMEL_BOX_SEED": str(seed),
            "SEMEL_BOX_FAULT": fault,
        }
        servers = [PaymentServer(settings, in_threads=False) for _ in range(1 if fault else ASYNC_SERVERS)]
        if any(arm.in_threads for arm in arms):
            servers.append(PaymentServer(settings, in_threads=True))
        for server in servers:
            stack.callback(server.stop)
            stack.callback(server.kill)
        with ThreadPoolExecutor(len(servers)) as threads:
            list(threads.map(PaymentServer.start, servers))
        yield Deployment(arms, servers, postgres, links, sqlite, journal)


def _create(postgres_url: str, sqlite: Path) -> None:
    for url in (postgres_url, f"sqlite:///{sqlite}"):
        store = open_store(url)
        assert isinstance(store, Migratable)
        store.migrate()
        store.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for statement in CREATE:
            connection.execute(statement.encode())
    with closing(sqlite3.connect(sqlite)) as file, file:
        for statement in CREATE:
            file.execute(statement)
