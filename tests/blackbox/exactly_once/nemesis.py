"""The nemesis of the exactly-once arm: it stops processes and event loops past the lease, kills and cuts."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import psycopg

from blackbox.exactly_once.deployment import Deployment, ask
from blackbox.exactly_once.orders import LEASE_S
from blackbox.nemesis import Lanes, shown
from semel.testing.proxy import Fault, ProxyExchange, always

EXCHANGE_FAULTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.HALF_CLOSE, Fault.DELAY)
COMMIT_FAULTS = (Fault.CUT_BEFORE, Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.HALF_CLOSE)


class Nemesis(Lanes):
    def __init__(self, deployment: Deployment, seed: int) -> None:
        super().__init__([*deployment.links.values()], seed)
        self._deployment = deployment
        self._links = [deployment.links[arm.name] for arm in deployment.arms if arm.name in deployment.links]
        self._locks = {server.port: threading.Lock() for server in deployment.servers}

    def start(self, *, restarting: bool = True) -> None:
        """`restarting` ends servers, too: those take seconds to come back."""
        lanes = (self._pauses, self._loops, self._wires, self._commits)
        self.begin(*lanes, *((self._processes,) if restarting else ()))

    def _processes(self, random: random.Random) -> None:
        for act in self._acts(random, (self._kill, self._end), pause_s=1.5):
            act(random)

    def _pauses(self, random: random.Random) -> None:
        for act in self._acts(random, (self._pause,), pause_s=1.2):
            act(random)

    def _loops(self, random: random.Random) -> None:
        for act in self._acts(random, (self._block,), pause_s=1.2):
            act(random)

    def _wires(self, random: random.Random) -> None:
        kinds = (self._cut, *(self._break_exchange,) * 3, *(self._terminate,) * 2)
        for act in self._acts(random, kinds, pause_s=1.5 / len(self._links)):
            act(random)

    def _commits(self, random: random.Random) -> None:
        for act in self._acts(random, (self._break_commit,), pause_s=0.4):
            act(random)

    def _kill(self, random: random.Random) -> None:
        server = random.choice(self._deployment.servers)
        with self._locks[server.port]:
            server.kill()
            self._count("server killed (SIGKILL)")
            server.start()

    def _end(self, random: random.Random) -> None:
        """Handlers that do not end within a second are cancelled by the server."""
        server = random.choice(self._deployment.servers)
        with self._locks[server.port]:
            server.restart()
        self._count("server ended in good order (SIGTERM)")

    def _pause(self, random: random.Random) -> None:
        server = random.choice(self._deployment.servers)
        with self._locks[server.port]:
            server.pause()
            self._ended.wait(LEASE_S * random.uniform(1.2, 3))
            server.resume()
        self._count("server stopped past the lease (SIGSTOP)")

    def _block(self, random: random.Random) -> None:
        server = random.choice([server for server in self._deployment.servers if not server.in_threads])
        with suppress(OSError, ValueError):  # it was killed meanwhile
            ask(server.port, "block")
            self._count("event loop blocked past the lease")

    def _cut(self, random: random.Random) -> None:
        if random.choice(self._links).cut():
            self._count("all connections of an arm to PostgreSQL cut")

    def _break_exchange(self, random: random.Random) -> None:
        fault = random.choice(EXCHANGE_FAULTS)
        self._break(random.choice(self._links), fault, f"exchange: {shown(fault)}", always)

    def _break_commit(self, random: random.Random) -> None:
        fault = random.choice(COMMIT_FAULTS)
        self._break(random.choice(self._links), fault, f"COMMIT: {shown(fault)}", is_commit)

    def _terminate(self, random: random.Random) -> None:
        with suppress(psycopg.OperationalError):
            if self._deployment.end_backend():
                self._count("connection ended by pg_terminate_backend")


def is_commit(exchange: ProxyExchange) -> bool:
    return b"COMMIT" in exchange.request
