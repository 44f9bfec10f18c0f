"""The world of the messages: a history up to the end of its faults, and on until nothing is to be done."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from typing import Any

from semel.core.messages import Message
from semel.outbox import relay as relay_module
from semel.transaction import attempts, binding
from simulation.history import History, deterministic
from simulation.messages.broker import Broker
from simulation.messages.database import MessageDatabase
from simulation.messages.depot import Depot
from simulation.messages.leasing import LeaseServer
from simulation.messages.oracle import Oracle, own_ms
from simulation.messages.process import ConsumerProcess, MessageProcess, RelayProcess
from simulation.messages.scenario import Fault, MessageScenario, Planned
from simulation.telling import EPOCH_MS
from simulation.transactions.connection import Connection, Driver
from simulation.transactions.server import Server

CHAOS_MS = 4_000
"""Faults end after this, or after whatever is planned last."""
LOOK_MS = 500
REST_S = 600.0
"""How long a history may take to come to rest."""


class MessageWorld(History[MessageScenario, Oracle, MessageProcess]):
    def __init__(self, scenario: MessageScenario, *, trace: bool = False) -> None:
        faults = (*scenario.process_faults, *scenario.message_faults, *scenario.store_faults, *scenario.lease_faults)
        super().__init__(scenario, calm=not faults, trace=trace)
        self._faults: dict[tuple[str, int], Fault] = {
            (fault.where, fault.nth): fault for fault in scenario.store_faults
        }
        self._relays = scenario.processes - scenario.choices.consumers
        self._is_ending = False
        self.oracle = Oracle(self)
        self.depot = Depot(self)
        self.broker = Broker(self)
        self.leases = LeaseServer(self)
        self.server = Server(self)  # type: ignore[arg-type]  # it has what a server asks of its world
        self.database = self.server.database = MessageDatabase(self)

    def database_ms(self) -> int:
        return EPOCH_MS + int(self.time.now_s * 1000)

    def planned(self, id: str) -> Planned:
        return self.scenario.messages[int(id[1:])]

    def message(self, number: int) -> Message:
        key = self.scenario.messages[number].key
        return Message(f"m{number}", "orders", b"message %d" % number, key=key)

    def make_process(self, index: int, life: int) -> MessageProcess:
        return (RelayProcess if index < self._relays else ConsumerProcess)(self, index, life)

    def start(self, index: int, life: int) -> None:
        if not self._is_ending:
            super().start(index, life)

    def consumers(self) -> list[ConsumerProcess]:
        return [process for process in self.processes.values() if isinstance(process, ConsumerProcess)]

    def fault(self, where: str, calls: Counter[str]) -> Fault | None:
        """What strikes this call."""
        number, calls[where] = calls[where], calls[where] + 1
        fault = self._faults.get((where, number))
        if fault is not None:
            self.reached.add(f"{where} {fault.kind}")
            self.note("fault", "{} strikes {}", fault.kind, where)
        return fault

    def hint(self) -> None:
        """Tell the relays that there are new messages; some do not hear it."""
        for process in self.processes.values():
            if isinstance(process, RelayProcess) and self.time.rng.random() < 0.7:
                self.time.after_ms(1, process.outbox.hint.set)

    def expect_faults(self) -> None:
        chaos_ms = CHAOS_MS
        for adding in self.scenario.addings:
            self.time.after_ms(adding.at_ms, self.depot.begin, adding)
            chaos_ms = max(chaos_ms, adding.at_ms + adding.takes_ms)
        acts = {"redrive": self.depot.redrive, "discard": self.depot.discard}
        for fault in self.scenario.store_faults:
            if fault.where == "operator":
                self.time.after_ms(fault.ms, acts.get(fault.kind, self.broker.deliver_dead_again))
                chaos_ms = max(chaos_ms, fault.ms)
        self.time.after_ms(chaos_ms + LOOK_MS, self._heal)

    def _heal(self) -> None:
        self.note("world", "heals")
        self._faults.clear()
        for process in self.processes.values():
            process.loop.on_step.clear()
        self.server.heal()
        self.leases.heal()
        self.depot.heal()
        self.broker.heal()
        self._look()

    def _look(self) -> None:
        """When nothing is to be done, the relays are asked to stop."""
        rests = not self.depot.open and not self.depot.waiting() and self.broker.is_quiet() and not self.database.open
        if not rests and self.time.now_s < REST_S:
            self.time.after_ms(LOOK_MS, self._look)
            return
        self._is_ending = True
        if not rests:
            self.oracle.violated("everything-settles", f"after {REST_S:g} s there is still something to do")
        for process in self.processes.values():
            if isinstance(process, RelayProcess) and process.stopped_s is None and not process.loop.dead:
                process.stopped_s = self.time.now_s
                process.relay.stop()

    def probe(self) -> None:
        """The oracle has looked at everything."""


def run(scenario: MessageScenario, *, trace: bool = False) -> MessageWorld:
    """One history from its beginning to its end."""
    rng = random.Random(scenario.seed)
    puts: list[tuple[Any, str, Any]] = [
        (secrets, "token_hex", lambda count=16: rng.randbytes(count).hex()),
        (relay_module, "boot_ms", own_ms),
        (binding, "driver_for", _driver_for),
        (attempts, "driver_for", _driver_for),
    ]
    with deterministic(scenario.seed, puts):
        world = MessageWorld(scenario, trace=trace)
        world.run()
    return world


def _driver_for(connection: object, schema: str) -> Driver:
    assert isinstance(connection, Connection)
    return Driver(connection)
