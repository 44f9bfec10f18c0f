"""The world of the transactions: a history on the simulated database, then each key is asked whether it has settled."""

from __future__ import annotations

import asyncio

from semel.core.http import REPLAYED, Response
from semel.transaction import requests, units
from simulation.history import PROBER, History, deterministic
from simulation.process import Request
from simulation.replies import FINAL, kind_of
from simulation.telling import EPOCH_MS
from simulation.transactions.connection import Connection, Driver
from simulation.transactions.oracle import Oracle
from simulation.transactions.process import TransactionProcess
from simulation.transactions.scenario import ServerFault, TransactionScenario
from simulation.transactions.server import Server

SOON_MS = 500
"""A claim takes less."""
SETTLED = FINAL | {"key-reused", "key-expired", "result-not-kept"}


class TransactionWorld(History[TransactionScenario, Oracle, TransactionProcess]):
    def __init__(self, scenario: TransactionScenario, *, trace: bool = False) -> None:
        calm = not (scenario.process_faults or scenario.message_faults or scenario.store_faults)
        super().__init__(scenario, calm=calm, trace=trace)
        self.server = Server(self)
        self.oracle = Oracle(self)

    def database_ms(self) -> int:
        return EPOCH_MS + int(self.time.now_s * 1000)

    def make_process(self, index: int, life: int) -> TransactionProcess:
        return TransactionProcess(self, index, life)

    def expect_faults(self) -> None:
        for fault in self.scenario.store_faults:
            self.time.after_ms(fault.at_ms, self._strike, fault)

    def _strike(self, fault: ServerFault) -> None:
        if fault.kind == "terminate":
            self.server.terminate_one()
        elif self.server.database.purge():
            self.reached.add("purged")

    def probe(self) -> None:
        """All is quiet: each key is asked for twice, in a new process. Both get one answer."""
        self.server.heal()
        self.start(PROBER, 0)
        for operation in self.time.rng.sample(self.scenario.operations, len(self.scenario.operations)):
            asked_ms, answers = 0, []
            for _ in range(2):
                asked_ms = self.database_ms()
                request = Request(self.processes[PROBER], None, operation, [])
                self.time.run()
                if request.response is None:
                    self.oracle.violated("everybody-is-answered", f"the probe r{request.number} hangs")
                    return
                answers.append(request.response)
            first, second = answers
            self._check_settled(first, second, asked_ms)
        self.oracle.quiet()

    def _check_settled(self, first: Response, second: Response, asked_ms: int) -> None:
        for response in (first, second):
            if (kind := kind_of(response)) not in SETTLED:
                self.oracle.violated("every-key-settles", f"when all was quiet, a repeat was told {kind}")
        if kind_of(first) == "answer":
            self.reached.add("probe replayed" if REPLAYED in first.headers else "probe ran")
            number = dict(first.headers)[b"x-entry"]
            committed = self.oracle.entries[int(number)].committed
            is_owed = committed is not None and asked_ms + SOON_MS < committed.record.expires_ms
            if is_owed and (REPLAYED not in second.headers or dict(second.headers).get(b"x-entry") != number):
                self.oracle.violated("every-key-settles", "when all was quiet, the repeat got another answer")


def run(scenario: TransactionScenario, *, trace: bool = False) -> TransactionWorld:
    """One history from its beginning to its end."""
    with deterministic(scenario.seed, [(requests, "wall_ms", _wall_ms), (units, "driver_for", _driver_for)]):
        world = TransactionWorld(scenario, trace=trace)
        world.run()
    return world


def _wall_ms() -> int:
    """By the clock of the process."""
    return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)


def _driver_for(connection: object, schema: str) -> Driver:
    assert isinstance(connection, Connection)
    return Driver(connection)
