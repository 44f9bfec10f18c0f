"""One run: traffic while servers of the engine are killed, then quiet, then the last questions, then the judge."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from blackbox.clients import Clients
from blackbox.deployment import CONTROL, LEASE_S, PROCESSES, AppServer, Deployment
from blackbox.run import CLIENTS, Outcome, ask_again, outcome_of
from fire.long.engine import ENGINES, Engine
from semel import open_store
from semel.store import Migratable

DEAD_S = 3.0
"""How long a server stays dead: longer than it takes to notice that."""
CALM_S = (0.5, 2.0)
"""Between a server that is back and the next kill."""


@contextmanager
def deployed(name: str, engine: Engine, folder: Path) -> Iterator[Deployment]:
    """Three service processes on the engine."""
    with ExitStack() as stack:
        store = open_store(engine.url)
        stack.callback(store.close)
        if isinstance(store, Migratable):
            store.migrate()
        ledger = folder / "ledger"
        ledger.touch()
        settings = {
            "SEMEL_BOX_LEDGER": str(ledger),
            "SEMEL_BOX_LEASE_S": str(LEASE_S),
            "SEMEL_BOX_STORES": json.dumps({name: engine.url}),
        }
        servers = [AppServer(settings) for _ in range(PROCESSES)]
        for server in servers:
            stack.callback(server.stop)
            stack.callback(server.kill)  # in good order they would wait for everything that the kills left open
        with ThreadPoolExecutor(PROCESSES) as threads:
            list(threads.map(AppServer.start, servers))
        yield Deployment(servers, [], {}, {}, {name: store}, ledger)


class Killer:
    """Kills and restarts servers of the engine in a thread, until it is told to stop; everything runs then."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._engine = engine
        self._chance = random.Random(seed)
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._work = self._thread.submit(self._run)

    def stop(self) -> None:
        self._stopped.set()
        self._work.result()
        self._thread.shutdown()

    @property
    def failed(self) -> bool:
        return self._work.done()

    def _run(self) -> None:
        while not self._stopped.wait(self._chance.uniform(*CALM_S)):
            self.kills[self._engine.kill(self._chance)] += 1
            self._stopped.wait(DEAD_S)
            self._engine.restart()


def run(name: str, seconds: float, seed: int) -> Outcome:
    with (
        tempfile.TemporaryDirectory(prefix="semel-fire-") as folder,
        ENGINES[name]() as engine,
        deployed(name, engine, Path(folder)) as deployment,
    ):
        started = time.monotonic()
        clients = Clients([server.port for server in deployment.servers], [name, CONTROL], seed)
        killer = Killer(engine, seed)
        try:
            asyncio.run(_traffic(clients, killer, seconds))
        finally:
            killer.stop()
        evidence = asyncio.run(ask_again(clients, deployment, seed))
        return outcome_of(clients, killer.kills, evidence, seed, time.monotonic() - started)


async def _traffic(clients: Clients, killer: Killer, seconds: float) -> None:
    tasks = [asyncio.create_task(clients.run()) for _ in range(CLIENTS)]
    end = time.monotonic() + seconds
    while time.monotonic() < end and not killer.failed:
        await asyncio.sleep(0.05)
    clients.ended = True
    await asyncio.gather(*tasks)
