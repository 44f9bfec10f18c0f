"""Shops that add messages in transactions of their own, and relay processes whose broker is a file."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pymysql
import pytest

from semel import open_store
from semel.core.outbox import CountMessages, ListMessages, MessageState, OutboxCounts, OutboxEntry, OutboxFilter
from semel.store import Migratable, Outboxed
from semel.stores.url import StoreUrl
from semel.transaction import within
from servers.mariadb import arguments

RELAY = """
import asyncio, os, signal, sys
from semel.outbox import Relay

class Journal:
    '''Confirms a message when the operating system has its line, which outlives this process.'''

    def __init__(self, path, pause_s):
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.pause_s = pause_s

    async def publish(self, message):
        await asyncio.sleep(self.pause_s)
        line = f"{os.getpid()} {message.key} {message.id} {message.payload.decode()}\\n"
        assert os.write(self.file, line.encode()) == len(line)
        await asyncio.sleep(self.pause_s)

    async def close(self):
        os.close(self.file)

async def main():
    store, path, pause_s, lease, batch = sys.argv[1:]
    relay = Relay(store, Journal(path, float(pause_s)), lease=float(lease), batch=int(batch), poll=0.05)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
    print("ready", flush=True)
    await relay.run()

asyncio.run(main())
"""


@dataclass(frozen=True)
class Line:
    """One line of the journal: what one relay published."""

    pid: int
    key: str | None
    id: str
    payload: str


class Shop:
    """A database with an outbox in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        store = open_store(url)
        assert isinstance(store, Migratable)
        store.migrate()
        assert isinstance(store, Outboxed)
        self._store, self.store = store, store
        self.added: list[str] = []

    def close(self) -> None:
        self._store.close()

    def connect(self) -> Any:
        if self.url.startswith("sqlite"):
            return sqlite3.connect(StoreUrl.parse(self.url).parts.path[1:], timeout=30)
        if self.url.startswith("mysql"):
            return pymysql.connect(**arguments(self.url))
        return psycopg.connect(self.url)

    def publish(self, numbers: Sequence[int], keys: int = 0, *, connection: Any = None) -> None:
        """Add messages in one transaction; with `keys`, each has one of so many keys."""
        if connection is None:
            with closing(self.connect()) as own:
                self.publish(numbers, keys, connection=own)
                own.commit()
            return
        if isinstance(connection, sqlite3.Connection):
            connection.execute("BEGIN IMMEDIATE")
        tx = within(connection)
        for number in numbers:
            key = f"key-{number % keys}" if keys else None
            self.added.append(tx.publish("orders", str(number), key=key, id=f"id-{number}"))

    def counts(self) -> OutboxCounts:
        return self.store.outbox(CountMessages())

    def held(self) -> list[OutboxEntry]:
        page = self.store.outbox(ListMessages(OutboxFilter(state=MessageState.WAITING), 1_000))
        return [each for each in page.entries if each.lease_until_ms > page.now_ms]


def new_database(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a database for one test."""
    if kind == "sqlite":
        return f"sqlite:///{folder}/shop.db"
    server = request.getfixturevalue(f"{kind}_server")
    url: str = server.create_database(f"shop_{uuid4().hex[:12]}")
    return url


class Fleet:
    """Relay processes, and the journal to which all of them publish."""

    def __init__(self, url: str, folder: Path, *, pause_s: float = 0.0, lease_s: float = 1.0, batch: int = 20) -> None:
        self.journal = folder / "journal"
        self.journal.touch()
        self._words = [sys.executable, "-c", RELAY, url, str(self.journal), str(pause_s), str(lease_s), str(batch)]
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(self._words, stdout=subprocess.PIPE)
        assert process.stdout is not None
        self.processes.append(process)
        return process

    def start_ready(self) -> subprocess.Popen[bytes]:
        process = self.start()
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    def kill(self, process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGKILL) -> int:
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        self.processes.remove(process)
        assert process.stdout is not None
        process.stdout.close()
        return process.wait(30)

    def lines(self) -> list[Line]:
        found: list[Line] = []
        for text in self.journal.read_text().splitlines():
            pid, key, id_, payload = text.split(" ")
            found.append(Line(int(pid), None if key == "None" else key, id_, payload))
        return found

    def ids(self) -> set[str]:
        return {line.id for line in self.lines()}


@contextmanager
def fleet(url: str, folder: Path, **options: Any) -> Iterator[Fleet]:
    found = Fleet(url, folder, **options)
    try:
        yield found
    finally:
        for process in list(found.processes):
            found.kill(process)


def first_by_key(lines: Sequence[Line]) -> Mapping[str | None, list[int]]:
    """The numbers of each key in the order in which they were published for the first time."""
    seen, found = set[str](), defaultdict[str | None, list[int]](list)
    for line in lines:
        if line.id not in seen:
            seen.add(line.id)
            found[line.key].append(int(line.payload))
    return found


def check_published(shop: Shop, lines: Sequence[Line]) -> None:
    """None is lost, none has two ids, each key is in order, and the relays have settled and released everything."""
    assert {line.id for line in lines} == set(shop.added)
    assert all(line.id == f"id-{line.payload}" for line in lines)
    for key, numbers in first_by_key(lines).items():
        assert key is None or numbers == sorted(numbers)
    counts = shop.counts()
    assert (counts.waiting, counts.dead, counts.published) == (0, 0, len(shop.added))


def seconds_from(name: str, short_s: float) -> float:
    """How long a test goes on: short in CI, as long as this environment variable says elsewhere."""
    return float(os.environ.get(name, short_s))
