"""The world of the callers: programs ask for operations until the faults are over, and then once more."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from msgspec.structs import replace

from semel.core.call_values import CallAnswered, CallerSettings, CallRefusal, CallRefused, IntentOf, OutgoingCall
from semel.core.dialects import DRAFT_07, KeyFormat
from semel.core.journal import CallRequest, IntentId
from semel.core.retries import Backoff
from simulation.calls.journal import SimulatedJournal
from simulation.calls.network import Network
from simulation.calls.oracle import FINAL, Oracle
from simulation.calls.process import ClientProcess, ProgramRun, ServerProcess
from simulation.calls.scenario import Ask, CallScenario, WayFault, Where
from simulation.history import PROBER, History, deterministic
from simulation.process import AnyProcess
from simulation.scenario import StoreFault
from simulation.store import Server
from simulation.telling import EPOCH_MS

PROBES = 4
LASTING = (CallRefusal.TOO_OLD, CallRefusal.DOUBTFUL)


class CallWorld(History[CallScenario, Oracle, AnyProcess]):
    def __init__(self, scenario: CallScenario, *, trace: bool = False) -> None:
        faults = (
            *scenario.process_faults,
            *scenario.message_faults,
            *scenario.store_faults,
            *scenario.way_faults,
            *scenario.operator_faults,
        )
        super().__init__(scenario, calm=not faults, trace=trace)
        settings = scenario.settings
        self.settings = CallerSettings(
            dialect=replace(DRAFT_07, format=KeyFormat[settings.format]),
            backoff=Backoff(attempts=settings.attempts, deadline_ms=settings.deadline_ms),
            lease_ms=settings.lease_ms,
        )
        self._faults = {(fault.where, fault.nth): fault for fault in scenario.way_faults}
        self._calls: Counter[str] = Counter()
        self._store_ahead_ms = 0
        self.ahead_ms = 0
        """By how much the clock of the clients' machine was put forward."""
        self.unfinished: dict[int, list[Ask]] = {}
        """What the programs of a dead process will ask for again."""
        self.oracle = Oracle(self)
        self.server = Server(self)  # type: ignore[arg-type]  # it has what a store asks of its world
        self.network = Network(self)
        self.journal = SimulatedJournal(self)

    def store_ms(self) -> int:
        return EPOCH_MS + int(self.time.now_s * 1000) + self._store_ahead_ms

    def date_ms(self) -> int:
        """By the clock of the clients' machine. It has nothing to do with the store's."""
        return 2 * EPOCH_MS + int(self.time.now_s * 1000) + self.ahead_ms

    def make_process(self, index: int, life: int) -> AnyProcess:
        if index < self.scenario.servers:
            return ServerProcess(self, index, life)  # type: ignore[arg-type]  # it has what a server asks of its world
        return ClientProcess(self, index, life)

    def servers(self) -> list[ServerProcess]:
        return [process for process in self.processes.values() if isinstance(process, ServerProcess)]

    def clients(self) -> list[ClientProcess]:
        return [process for process in self.lives if isinstance(process, ClientProcess) and not process.loop.dead]

    def call_of(self, ask: Ask) -> OutgoingCall:
        body = b"%d other" % ask.intent if ask.differs == "body" else b"%d" % ask.intent
        return OutgoingCall(
            CallRequest("POST", "https://api.example/pay", (("content-type", "text/plain"),), body),
            f"own-{ask.intent}" if ask.differs == "key" else "",
            IntentOf(IntentId(f"op{ask.intent}"), ask.max_age_ms) if self.scenario.settings.journal else None,
        )

    def fault(self, where: Where) -> WayFault | None:
        """What strikes this call."""
        number, self._calls[where] = self._calls[where], self._calls[where] + 1
        fault = self._faults.get((where, number))
        if fault is not None:
            self.reached.add(f"{where} {fault.kind}")
            self.note("fault", "{} strikes {}", fault.kind, where)
        return fault

    def ask(self, ask: Ask, index: int) -> None:
        """A program of this process asks; if the process is dead, as soon as it lives again."""
        process = self.processes[index]
        assert isinstance(process, ClientProcess)
        if process.loop.dead:
            self.unfinished.setdefault(index, []).append(ask)
        else:
            process.begin(ask)

    def expect_faults(self) -> None:
        for ask in self.scenario.asks:
            self.time.after_ms(ask.at_ms, self.ask, ask, self.scenario.servers + ask.client)
        for fault in self.scenario.store_faults:
            self.time.after_ms(fault.at_ms, self._strike, fault)
        for act in self.scenario.operator_faults:
            self.time.after_ms(act.at_ms, self.journal.operate, act)

    def _strike(self, fault: StoreFault) -> None:
        self.note("store", "{}", fault)
        self.reached.add(f"store {fault.kind}")
        match fault.kind:
            case "clock":
                self._store_ahead_ms += fault.ms
            case "purge":
                self.server.store.purge(limit=10)
            case _:
                self.server.unreadable = True

    def probe(self) -> None:
        """The faults are over, and nobody holds anything any more: each intent is asked for until that is settled."""
        self.note("world", "heals")
        self._faults.clear()
        self.server.heal()
        self.network.heal()
        leases_ms = [entry.lease_until_ms - self.date_ms() for entry in self.journal.book.entries.values()]
        self.time.after_ms(max([self.scenario.choices.lease_ms, *leases_ms]) + 1, lambda: None)
        self.time.run()
        self.start(PROBER, 0)
        prober = self.processes[PROBER]
        assert isinstance(prober, ClientProcess)
        for entry in list(self.journal.book.entries.values()):
            differs: Literal["no", "body"] = "body" if entry.request.body.endswith(b"other") else "no"
            self._settle(prober, Ask(int(entry.id.name[2:]), 0, 0, entry.max_age_ms, differs))

    def _settle(self, prober: ClientProcess, ask: Ask) -> None:
        runs: list[ProgramRun] = []
        while len(runs) < PROBES:
            runs.append(prober.begin(ask))
            self.time.run()
            if is_settled(runs[-1]):
                self._ask_again(prober, runs[-1])
                return
        if self.scenario.promised:  # a server that has forgotten the key may fail each time, and store none of it
            self.oracle.violated("every-intent-settles", f"{runs[-1].intent}: {runs[-1].result}")

    def _ask_again(self, prober: ClientProcess, first: ProgramRun) -> None:
        again = prober.begin(first.ask)
        self.time.run()
        if not is_settled(again) or type(again.result) is not type(first.result) or again.sent:
            self.oracle.violated("every-intent-settles", f"{again.intent}: {first.result}, and then {again.result}")


def is_settled(run: ProgramRun) -> bool:
    """Whether it has the answer to the operation, or a reason that lasts."""
    match run.result:
        case CallAnswered(end=end):
            return end.name in FINAL
        case CallRefused(refusal):
            return refusal in LASTING
        case _:
            return False


def run(scenario: CallScenario, *, trace: bool = False) -> CallWorld:
    """One history from its beginning to its end."""
    with deterministic(scenario.seed):
        world = CallWorld(scenario, trace=trace)
        world.run()
    return world
