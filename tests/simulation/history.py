"""One history of any simulation: its processes and callers, virtual time, what was reached, and how it ends."""

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
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import semel.runtime.perform
from semel.core.http import Response
from simulation.callers import Calling
from simulation.loop import Hang, Scheduler
from simulation.telling import told

if TYPE_CHECKING:
    from simulation.process import AnyProcess, Request
    from simulation.scenario import Caller, Operation, ProcessFault

Put = tuple[Any, str, Any]
"""A module, a name in it, and what stands there while a history runs."""


class AnyScenario(Protocol):
    """What every scenario has. Frozen dataclasses have read-only attributes."""

    @property
    def seed(self) -> int: ...
    @property
    def processes(self) -> int: ...
    @property
    def step_ms(self) -> float: ...
    @property
    def operations(self) -> tuple[Operation, ...]: ...
    @property
    def callers(self) -> tuple[Caller, ...]: ...
    @property
    def process_faults(self) -> tuple[ProcessFault, ...]: ...


class AnyOracle(Protocol):
    """What every oracle is told."""

    def violated(self, name: str, detail: str) -> None: ...
    def begin(self, request: Request) -> int: ...
    def replied(self, request: Request, response: Response) -> None: ...
    def ended(self, request: Request, error: BaseException | None) -> None: ...
    def crashed(self, process: Any) -> None: ...
    def quiet(self) -> None: ...


S = TypeVar("S", bound=AnyScenario)
O = TypeVar("O", bound=AnyOracle)  # noqa: E741
P = TypeVar("P", bound="AnyProcess")


class History(ABC, Generic[S, O, P]):
    oracle: O

    def __init__(self, scenario: S, *, calm: bool, trace: bool) -> None:
        self.scenario = scenario
        self.calm = calm
        self.time = Scheduler(scenario.seed, scenario.step_ms / 1000)
        self.trace: list[str] | None = [] if trace else None
        self.reached: set[str] = set()
        self.violations: list[tuple[str, str]] = []
        self.over = False
        self.lives: list[P] = []
        self.processes: dict[int, P] = {}

    def note(self, who: str, what: str, *values: object) -> None:
        if self.trace is not None:
            said = what.format(*map(told, values))
            self.trace.append(f"{self.time.now_s * 1000:10.2f} ms  {who:<6} {said}")

    def run(self) -> None:
        for index in range(self.scenario.processes):
            self.start(index, 0)
        for fault in self.scenario.process_faults:
            if fault.process in self.processes:
                self.processes[fault.process].expect(fault)
        self.expect_faults()
        for index, caller in enumerate(self.scenario.callers):
            Calling(self, caller, f"c{index}").next()
        try:
            self.time.run()
            self.oracle.quiet()
            self.probe()
        except Hang as hang:
            self.oracle.violated("no-hang", str(hang))
        except Exception as error:
            self.oracle.violated("no-unexpected-exception", f"in the world: {error!r}")
        finally:
            self._end()

    def start(self, index: int, life: int) -> None:
        process = self.processes[index] = self.make_process(index, life)
        self.lives.append(process)

    @abstractmethod
    def make_process(self, index: int, life: int) -> P:
        """One life of a server process."""

    @abstractmethod
    def expect_faults(self) -> None:
        """Those that strike the store."""

    @abstractmethod
    def probe(self) -> None:
        """All is quiet: ask for every key again."""

    def _end(self) -> None:
        """Nothing that is left may act when it is collected."""
        self.over = True
        for process in self.lives:
            process.loop.dead = True
            for task in process.loop.tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    # what refuses to be closed while it waits, or outside of its own context
                    with contextlib.suppress(RuntimeError, ValueError):
                        task.get_coro().close()

    def digest(self) -> str:
        assert self.trace is not None
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


PROBER = 99
"""The process that asks when all is quiet."""


@contextlib.contextmanager
def deterministic(seed: int, others: Sequence[Put] = ()) -> Iterator[None]:
    """Whatever else would differ from run to run: random owners and instances, and the clock of the plans' driver."""
    rng = random.Random(seed)
    old: list[Put] = []

    def put(module: Any, name: str, value: Any) -> None:
        old.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    put(secrets, "token_urlsafe", lambda _=None: f"{rng.getrandbits(64):016x}")
    put(secrets, "token_bytes", lambda count=16: rng.randbytes(count))
    put(os, "urandom", rng.randbytes)
    put(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128)))
    put(semel.runtime.perform, "time", SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time()))
    put(sys, "unraisablehook", lambda _: None)
    for module, name, value in others:
        put(module, name, value)
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
