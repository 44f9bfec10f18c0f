"""One history: the world of a scenario, run until nothing is left to happen, then asked whether every key settled."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import random
import secrets
import sys
import uuid
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import semel.drive
from semel.codecs import responses
from semel.core.http import Response
from simulation.callers import Calling
from simulation.loop import Hang, Scheduler
from simulation.oracle import Oracle
from simulation.process import Process, Request
from simulation.replies import FINAL, kind_of
from simulation.scenario import Scenario, StoreFault
from simulation.store import Server
from simulation.telling import EPOCH_MS, told

OPERATOR = Response(200, ((b"x-entry", b"operator"),), b"found out")


class World:
    def __init__(self, scenario: Scenario, *, trace: bool = False) -> None:
        self.scenario = scenario
        self.calm = not (scenario.process_faults or scenario.message_faults or scenario.store_faults)
        self.time = Scheduler(scenario.seed, scenario.step_ms / 1000)
        self.trace: list[str] | None = [] if trace else None
        self.reached: set[str] = set()
        self.violations: list[tuple[str, str]] = []
        self.over = False
        self._ahead_ms = 0
        self.server = Server(self)
        self.oracle = Oracle(self)
        self.lives: list[Process] = []
        self.processes: dict[int, Process] = {}

    def store_ms(self) -> int:
        return EPOCH_MS + int(self.time.now_s * 1000) + self._ahead_ms

    def note(self, who: str, what: str, *values: object) -> None:
        if self.trace is not None:
            said = what.format(*map(told, values))
            self.trace.append(f"{self.time.now_s * 1000:10.2f} ms  {who:<6} {said}")

    # A history

    def run(self) -> None:
        for index in range(self.scenario.processes):
            self.start(index, 0)
        for fault in self.scenario.process_faults:
            if fault.process in self.processes:
                self.processes[fault.process].expect(fault)
        for store_fault in self.scenario.store_faults:
            self.time.after_ms(store_fault.at_ms, self._strike, store_fault)
        for index, caller in enumerate(self.scenario.callers):
            Calling(self, caller, f"c{index}").next()
        try:
            self.time.run()
            self.oracle.quiet()
            self._probe()
        except Hang as hang:
            self.oracle.violated("no-hang", str(hang))
        except Exception as error:
            self.oracle.violated("no-unexpected-exception", f"in the world: {error!r}")
        finally:
            self._end()

    def start(self, index: int, life: int) -> None:
        process = self.processes[index] = Process(self, index, life)
        self.lives.append(process)

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

    def _probe(self) -> None:
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

    def _end(self) -> None:
        """Nothing that is left may act when it is collected."""
        self.over = True
        for process in self.lives:
            process.loop.dead = True
            for task in process.loop.tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    with contextlib.suppress(RuntimeError):  # what refuses to be closed while it waits
                        task.get_coro().close()

    def digest(self) -> str:
        assert self.trace is not None
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


PROBER = 99


def run(scenario: Scenario, *, trace: bool = False) -> World:
    """One history from its beginning to its end."""
    with _deterministic(scenario.seed):
        world = World(scenario, trace=trace)
        world.run()
    return world


@contextlib.contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    """Whatever else would differ from run to run: random owners and instances, and the clock of the plans' driver."""
    rng = random.Random(seed)
    old: list[tuple[Any, str, Any]] = []

    def put(module: Any, name: str, value: Any) -> None:
        old.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    put(secrets, "token_urlsafe", lambda _=None: f"{rng.getrandbits(64):016x}")
    put(secrets, "token_bytes", lambda count=16: rng.randbytes(count))
    put(os, "urandom", rng.randbytes)
    put(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128)))
    put(semel.drive, "time", SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time()))
    put(sys, "unraisablehook", lambda _: None)
    logger = logging.getLogger("semel")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what never began is never awaited
            yield
    finally:
        logger.setLevel(level)
        for module, name, value in reversed(old):
            setattr(module, name, value)
