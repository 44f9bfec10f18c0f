"""A service as a process: an adapter, a real inbox, and a handler that writes one effect into PostgreSQL.

Usage: `python -m inbox.service KIND BROKER_URL NAME DATABASE_URL GATE`. It prints each message that it has written, and
waits for the file GATE before the transaction commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg

from inbox.brokers import Broker, OnNats, OnRabbitmq, OnRedis
from semel.inbox import AsyncInbox, Delivery
from waiting import until

KINDS: dict[str, type[Broker]] = {"redis": OnRedis, "rabbitmq": OnRabbitmq, "nats": OnNats}
HANDLER = "tests.adapter"
READY = "ready"
Connection = psycopg.AsyncConnection[Any]


class Service:
    """The process, seen from a test."""

    def __init__(self, broker: Broker, database: str, gate: Path) -> None:
        (kind,) = (name for name, known in KINDS.items() if isinstance(broker, known))
        words = [sys.executable, "-m", "inbox.service", kind, broker.url, broker.name, database, str(gate)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        self.written: list[str] = []
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == READY:
                self._ready.set()
            else:
                self.written.append(line.strip())

    def has_written(self, *messages: str) -> None:
        until(lambda: set(messages) <= set(self.written) or self.process.poll() is not None)
        assert self.process.poll() is None, "the service has ended"

    def end(self) -> int:
        assert self._ready.wait(30)
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextlib.contextmanager
def serving(broker: Broker, database: str, gate: Path) -> Iterator[Service]:
    service = Service(broker, database, gate)
    try:
        yield service
    finally:
        service.process.kill()
        service.process.wait()


def main(kind: str, url: str, name: str, database: str, gate: str) -> None:
    @contextlib.asynccontextmanager
    async def begin() -> AsyncIterator[Connection]:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            yield connection

    async def handle(connection: Connection, delivery: Delivery) -> None:
        name = delivery.payload.decode()
        await connection.execute("INSERT INTO effects (name) VALUES (%s)", (name,))
        print(name, flush=True)
        while not Path(gate).exists():
            await asyncio.sleep(0.01)

    async def run() -> None:
        consumer = AsyncInbox(HANDLER).consumer(handle, begin=begin)
        worker = KINDS[kind](url, name).worker(consumer, concurrency=4)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        print(READY, flush=True)
        await worker.run()

    asyncio.run(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
