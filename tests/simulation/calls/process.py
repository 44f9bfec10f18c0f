"""The processes of a history: servers, and clients whose programs run the real plan of a call. All are killed.

A program that starts again asks again for everything that it had no answer to, under the same names.
"""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from semel.core.call_values import (
    AwaitIntent,
    CallerSettings,
    CallResult,
    DrawNumber,
    NewKey,
    OutgoingCall,
    ReadDate,
    ReportAttempt,
    SendFailure,
    SendRequest,
    SpendRetry,
)
from semel.core.callers import run_call
from semel.core.dialects import RANDOM_BYTES, make_key
from semel.core.effects import Effect, Pause
from semel.core.journal import JournalCall, RenewIntent
from semel.core.relay import NewOwner, ReadClock
from semel.core.retries import CallAnswer
from semel.errors import StoreError, StoreUnavailable
from semel.runtime.drive import adrive
from simulation.calls.journal import NAMES
from simulation.calls.scenario import Ask, WayFault
from simulation.process import AnyProcess, Process
from simulation.scenario import ProcessFault

if TYPE_CHECKING:
    from simulation.calls.world import CallWorld

T = TypeVar("T")
JOURNAL_MS = (0, 0, 1, 5)
AGAIN_MS = 1_000


class ProgramRun:
    """One time that a program asks for the answer to an operation."""

    def __init__(self, process: ClientProcess, ask: Ask, number: int) -> None:
        self.process, self.ask, self.number = process, ask, number
        self.name = f"u{number}"
        self.call: OutgoingCall = process.world.call_of(ask)
        self.settings: CallerSettings = process.world.settings
        self.began_ms = process.clock_ms()
        self.sent = 0
        self.may_send = False
        """The journal has granted the next attempt."""
        self.replies: list[CallAnswer | SendFailure] = []
        self.last: CallAnswer | SendFailure | None = None
        """The last one since the intent was opened."""
        self.replied_ms = 0
        self.journal_failed = False
        self.result: CallResult | StoreError | None = None

    @property
    def intent(self) -> str:
        return f"op{self.ask.intent}"


class ServerProcess(Process):
    """One whose death resets its connections."""

    def crash(self, down_ms: int) -> None:
        if not self.loop.dead:
            super().crash(down_ms)
            self.world.network.reset(self)  # type: ignore[attr-defined]  # this world has a network


class ClientProcess(AnyProcess):
    world: CallWorld  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, world: CallWorld, index: int, life: int) -> None:
        super().__init__(world, index, life)
        self.open: dict[asyncio.Task[CallResult], ProgramRun] = {}
        for ask in world.unfinished.pop(index, ()):
            self.world.reached.add("asked again after a crash")
            self.begin(ask)

    def clock_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def begin(self, ask: Ask) -> ProgramRun:
        run = self.world.oracle.begin_run(self, ask)
        self.world.note(run.name, "{} asks for {}", self.name, run.intent)
        task = self.loop.create_task(adrive(run_call(run.call, run.settings), partial(self._perform, run)))
        self.open[task] = run
        task.add_done_callback(self._ended)
        return run

    def _ended(self, task: asyncio.Task[CallResult]) -> None:
        run = self.open.pop(task)
        if self.world.over or self.loop.dead:
            return
        if task.cancelled():
            self.world.time.after_ms(AGAIN_MS, self.world.ask, run.ask, self.index)
            return
        error = task.exception()
        if error is not None and not isinstance(error, StoreError):
            self.world.oracle.violated("no-unexpected-exception", f"{run.name} raised {error!r}")
            return
        run.result = task.result() if error is None else error
        self.world.note(run.name, "ends with {}", run.result)
        self.world.oracle.ended_run(run, run.result)

    def _strike(self, fault: ProcessFault) -> None:
        if fault.kind == "cancel":
            self.disturbed = True
            for task in self.open:
                self.world.reached.add("call cancelled")
                task.cancel()
        else:
            super()._strike(fault)

    def crash(self, down_ms: int) -> None:
        if not self.loop.dead:
            self.world.unfinished.setdefault(self.index, []).extend(run.ask for run in self.open.values())
            super().crash(down_ms)

    # What the plan asks for

    async def _perform(self, run: ProgramRun, effect: Effect[Any]) -> Any:
        rng = self.world.time.rng
        match effect:
            case SendRequest():
                return await self._send(run, effect)
            case JournalCall():
                return await self._ask_journal(run, effect)
            case Pause(pause_ms):
                await asyncio.sleep(pause_ms / 1000)
                return self.clock_ms()
            case AwaitIntent(_, timeout_ms):
                self.world.reached.add("waited for another sender")
                return await asyncio.sleep(min(timeout_ms, self.world.scenario.settings.poll_ms) / 1000)
            case ReadClock():
                return self.clock_ms()
            case ReadDate():
                return self.world.date_ms()
            case DrawNumber():
                return rng.random()
            case NewOwner():
                return secrets.token_bytes(RANDOM_BYTES).hex()
            case NewKey(format, name):
                return make_key(format, secrets.token_bytes(RANDOM_BYTES), self.world.date_ms(), name)
            case SpendRetry():
                return True
            case ReportAttempt(_, end, step):
                self.world.reached.update((f"attempt {end.name.lower()}", f"step {step.name.lower()}"))
            case _:
                raise AssertionError(f"no client performs {effect}")

    async def _send(self, run: ProgramRun, effect: SendRequest) -> CallAnswer | SendFailure:
        fault = self.world.fault("send")
        await self._strike_before(fault)
        self.world.oracle.sends(run, effect)
        reply = self.world.network.send(run, effect, fault)
        if fault is not None and fault.kind == "crash-after":
            await self._die(fault)
        holding = self.loop.create_task(self._hold(run, effect.renew)) if effect.renew else None
        try:
            answer = await reply
        finally:
            if holding is not None:
                holding.cancel()
        if fault is not None and fault.kind == "crash-answered":
            await self._die(fault)
        self.world.oracle.replied_to(run, answer)
        return answer

    async def _hold(self, run: ProgramRun, renew: RenewIntent) -> None:
        """What drivers do while a request is under way."""
        while True:
            await asyncio.sleep(renew.lease_ms / 3_000)
            try:
                await self._ask_journal(run, renew)
            except StoreError:
                self.world.reached.add("renewal failed")

    async def _ask_journal(self, run: ProgramRun, call: JournalCall[T]) -> T:
        fault = self.world.fault(NAMES[type(call)])
        await asyncio.sleep(self._journal_ms())
        if fault is not None and fault.kind == "slow":
            await asyncio.sleep(fault.ms / 1000)
        await self._strike_before(fault)
        try:
            if fault is not None and fault.kind == "unavailable":
                raise StoreUnavailable("the journal is locked")
            reply = self.world.journal.answer(call)
            self.world.note(run.name, "{} -> {}", call, reply)
            if fault is not None and fault.kind == "reply-lost":
                raise StoreUnavailable("the journal may have it")
        except StoreError:
            self.world.oracle.journal_failed(run, call)
            raise
        if fault is not None and fault.kind == "crash-after":
            await self._die(fault)
        if fault is not None and fault.kind == "pause-after":
            self.loop.pause(fault.ms)
        await asyncio.sleep(self._journal_ms())
        self.world.oracle.journal_told(run, call, reply)
        return reply

    async def _strike_before(self, fault: WayFault | None) -> None:
        if fault is not None and fault.kind == "crash-before":
            await self._die(fault)
        if fault is not None and fault.kind == "pause-before":
            self.loop.pause(fault.ms)
            await asyncio.sleep(0)

    async def _die(self, fault: WayFault) -> None:
        self.crash(fault.ms)
        await self.loop.create_future()

    def _journal_ms(self) -> float:
        return JOURNAL_MS[int(self.world.time.rng.random() * len(JOURNAL_MS))] / 1000
