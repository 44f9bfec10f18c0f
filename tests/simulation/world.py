"""The world of the leases: a history on the memory store, then each key is asked whether it has settled."""

from __future__ import annotations

from semel.codecs import responses
from semel.core.http import Response
from simulation.history import PROBER, History, deterministic
from simulation.oracle import Oracle
from simulation.process import Process, Request
from simulation.replies import FINAL, kind_of
from simulation.scenario import Scenario, StoreFault
from simulation.store import Server
from simulation.telling import EPOCH_MS

OPERATOR = Response(200, ((b"x-entry", b"operator"),), b"found out")


class World(History[Scenario, Oracle, Process]):
    def __init__(self, scenario: Scenario, *, trace: bool = False) -> None:
        calm = not (scenario.process_faults or scenario.message_faults or scenario.store_faults)
        super().__init__(scenario, calm=calm, trace=trace)
        self._ahead_ms = 0
        self.server = Server(self)
        self.oracle = Oracle(self)

    def store_ms(self) -> int:
        return EPOCH_MS + int(self.time.now_s * 1000) + self._ahead_ms

    def make_process(self, index: int, life: int) -> Process:
        return Process(self, index, life)

    def expect_faults(self) -> None:
        for fault in self.scenario.store_faults:
            self.time.after_ms(fault.at_ms, self._strike, fault)

    def _strike(self, fault: StoreFault) -> None:
        self.note("store", "{}", fault)
        match fault.kind:
            case "clock":
                self.reached.add("store clock")
                self._ahead_ms += fault.ms
            case "purge":
                if self.server.store.purge(limit=10):
                    self.reached.add("purged")
                self.oracle.holdings.purged()
            case "unreadable":
                self.server.unreadable = True
            case "resolve":
                self._resolve()

    def _resolve(self) -> None:
        """An operator who has found out the truth ends what is unknown."""
        for key, held in self.oracle.holdings.held.items():
            seen = self.server.store.get(key)
            if seen is None or held.finished or self.oracle.holdings.is_live(key):
                continue
            ran = bool(self.oracle.current.get(key))
            if not ran and not self.oracle.is_dead(held.owner):
                continue  # it may still begin
            result = responses.encode(OPERATOR, ok=True) if ran else None
            retention_ms = self.scenario.choices.retention_ms
            if self.server.store.resolve(seen, result, retention_ms=retention_ms):
                self.reached.add("resolved")
                self.oracle.holdings.resolved(seen, result, retention_ms, self.store_ms())
                self.server.changed(key)
                return

    def probe(self) -> None:
        """All is quiet and every lease has had time to lapse: each key is asked for twice, in a new process."""
        self.server.heal()
        ends_ms = max((held.lease_until_ms for held in self.oracle.holdings.held.values()), default=0)
        self._ahead_ms += max(self.scenario.choices.lease_ms, ends_ms - self.store_ms()) + 1
        self.start(PROBER, 0)
        for operation in self.time.rng.sample(self.scenario.operations, len(self.scenario.operations)):
            answers: list[tuple[str, Response]] = []
            for _ in range(2):
                request = Request(self.processes[PROBER], None, operation, [])
                self.time.run()
                if request.response is None:
                    self.oracle.violated("everybody-is-answered", f"the probe r{request.number} hangs")
                    return
                answers.append((kind_of(request.response), request.response))
            self._settled(*answers)

    def _settled(self, first: tuple[str, Response], second: tuple[str, Response]) -> None:
        allowed = FINAL | {"key-reused", "key-expired", "result-not-kept"}
        if self.scenario.choices.guarantee == "at-most-once":
            allowed |= {"outcome-unknown"}
        if self.server.unreadable:
            allowed |= {"record-unreadable"}
        for kind, response in (first, second):
            if kind not in allowed:
                self.oracle.violated("every-key-settles", f"when all was quiet, a repeat was told {kind}")
            replayed = (b"idempotent-replayed", b"true") in response.headers
            if kind == "outcome-unknown":
                self.reached.add("probe unknown")
            elif kind in FINAL:
                self.reached.add("probe replayed" if replayed else "probe ran")


def run(scenario: Scenario, *, trace: bool = False) -> World:
    """One history from its beginning to its end."""
    with deterministic(scenario.seed):
        world = World(scenario, trace=trace)
        world.run()
    return world
