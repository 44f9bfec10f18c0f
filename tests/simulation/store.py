"""The store of a history: the real memory store behind a network that delays, loses, repeats and reorders, and the face
that each simulated process has for it, which is the real batching one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from semel.core.effects import Claim, Doubts, Effect, Read, Remove, Resolve
from semel.core.records import Key, Record
from semel.errors import RecordUnreadable, StoreError, StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.runtime.perform import performer
from semel.stores.batch_face import CoalescedFace
from semel.stores.memory import MemoryStore
from semel.stores.waiters import changed_key
from simulation.scenario import MessageFault

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World

DELAYS_MS = (0, 0, 1, 1, 2, 5, 20)
TIMEOUT_MS = 1_000
Calls = Sequence[Effect[Any]]
Asked = asyncio.Future[Sequence[Any]]


class Server:
    """Answers requests by its own clock. What it acknowledges it keeps."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = MemoryStore(clock=world.store_ms)
        self.unreadable = False
        self._perform = performer(self.store)
        self._messages: Counter[str] = Counter()
        self._away_until_s = 0.0
        self._faults: dict[tuple[str, int], MessageFault] = {}
        for fault in world.scenario.message_faults:
            self._faults[fault.call, fault.nth] = fault
        self._watchers: dict[Key, list[asyncio.Event]] = {}
        self._under_way: set[str] = set()
        """Requests that will be carried out although their callers were told that they failed."""

    def ask(self, process: Process, calls: Calls) -> Asked:
        """One request on its way, and its reply on the way back, as the scenario has it."""
        reply: Asked = process.loop.create_future()
        fault = self._fault_of(sorted({type(call).__name__ for call in calls}))
        world, go_ms = self.world, self._delay_ms()
        if self.world.time.now_s < self._away_until_s:
            world.reached.add("store away")
            world.time.after_ms(go_ms, self._fail, process, calls, reply)
        elif fault is None:
            world.time.after_ms(go_ms, self._arrive, process, calls, reply, self._delay_ms())
        else:
            for call in calls:
                world.reached.add(f"{type(call).__name__.lower()} {fault.kind}")
            world.note("store", "{}: {}", fault.kind, calls)
            self._strike(fault, process, calls, reply, go_ms)
        return reply

    def _fault_of(self, names: list[str]) -> MessageFault | None:
        found: MessageFault | None = None
        for name in names:
            found = self._faults.get((name, self._messages[name])) or found
            self._messages[name] += 1
        return found

    def _strike(self, fault: MessageFault, process: Process, calls: Calls, reply: Asked, go_ms: int) -> None:
        after, ms = self.world.time.after_ms, max(1, fault.ms)
        match fault.kind:
            case "refused":
                after(go_ms, self._fail, process, calls, reply)
            case "outage":
                self._away_until_s = self.world.time.now_s + ms / 1000
                after(go_ms, self._fail, process, calls, reply)
            case "lost":
                after(ms, self._fail, process, calls, reply)
            case "reply-lost":
                after(go_ms, self._apply, process, calls)
                after(go_ms + ms, self._fail, process, calls, reply)
            case "late":
                name = f"request {sum(self._messages.values())}"
                self._under_way.add(name)
                after(go_ms, self._fail, process, calls, reply)
                after(go_ms + ms, self._apply_late, name, process, calls)
            case "held":  # as by a commit that waits for a standby
                name = f"request {sum(self._messages.values())}"
                self._under_way.add(name)
                after(TIMEOUT_MS, self._fail, process, calls, reply, StoreTimeout)
                after(TIMEOUT_MS + ms, self._apply_late, name, process, calls)
            case "misconfigured":
                after(go_ms, self._fail, process, calls, reply, StoreMisconfigured)
            case "partial":
                after(go_ms, self._apply, process, calls[: len(calls) // 2])
                after(go_ms + ms, self._fail, process, calls, reply)
            case "duplicated":
                self.world.oracle.duplicated(calls)
                after(go_ms, self._arrive, process, calls, reply, self._delay_ms())
                after(go_ms + ms, self._apply, process, calls)
            case "crash":  # of the process: what it asked for is done, and it never hears of that
                after(go_ms, self._apply, process, calls)
                after(go_ms, process.crash, ms)
            case "slow-request":
                after(ms, self._arrive, process, calls, reply, self._delay_ms())
            case "slow-reply":
                after(go_ms, self._arrive, process, calls, reply, ms)

    def _arrive(self, process: Process, calls: Calls, reply: Asked, back_ms: int) -> None:
        answers = self._apply(process, calls)
        self.world.time.after_ms(back_ms, self._answer, process, calls, reply, answers)

    def _apply_late(self, name: str, process: Process, calls: Calls) -> None:
        self._under_way.discard(name)
        self._apply(process, calls)

    def _apply(self, process: Process, calls: Calls) -> list[Any] | RecordUnreadable:
        answers = []
        if len(calls) > 1:
            self.world.reached.add("batch")
        for call in calls:
            if isinstance(call, Doubts):
                left = frozenset(self._under_way)
                answers.append(left if call.before is None else left & call.before)
                continue
            if self.unreadable and self._has(call):
                self.world.oracle.unreadable(call)
                return RecordUnreadable("written by a later version")
            answer = self._perform(call)
            self.world.oracle.applied(call, answer)
            answers.append(answer)
            self.world.note("store", "{}: {} -> {}", process.name, call, answer)
            if (key := changed_key(call, answer)) is not None:
                self.changed(key)
        return answers

    def _has(self, call: Effect[Any]) -> bool:
        """Whether this is a call that looks at a record which is there."""
        return isinstance(call, Claim | Read | Resolve | Remove) and self.store.get(call.key) is not None

    def _answer(self, process: Process, calls: Calls, reply: Asked, answers: list[Any] | RecordUnreadable) -> None:
        if process.loop.dead or reply.done():
            self.world.reached.add("reply to nobody")
        elif isinstance(answers, RecordUnreadable):
            self.world.oracle.told_unreadable(calls)
            reply.set_exception(RecordUnreadable(str(answers)))
        else:
            for call, answer in zip(calls, answers, strict=True):
                if id(call) in process.store.given_up:
                    self.world.reached.add("reply too late")
                else:
                    self.world.oracle.told(call, answer)
            reply.set_result(answers)

    def _fail(self, process: Process, calls: Calls, reply: Asked, failure: type[StoreError] = StoreUnavailable) -> None:
        if not process.loop.dead and not reply.done():
            self.world.oracle.told_failure(calls)
            self.world.note("store", "{}: no answer to {}", process.name, calls)
            if len(calls) > 1:
                self.world.reached.add("batch failed")
            reply.set_exception(failure("no answer"))

    def heal(self) -> None:
        """From now on everything arrives."""
        self._faults.clear()
        self._away_until_s = 0.0

    def _delay_ms(self) -> int:
        return DELAYS_MS[int(self.world.time.rng.random() * len(DELAYS_MS))]

    # Waiting for a key

    def watch(self, key: Key, event: asyncio.Event) -> None:
        self._watchers.setdefault(key, []).append(event)

    def unwatch(self, key: Key, event: asyncio.Event) -> None:
        with suppress(ValueError):
            self._watchers[key].remove(event)

    def changed(self, key: Key) -> None:
        for event in self._watchers.get(key, ()):
            if self.world.time.rng.random() < 0.8:  # a notice may be lost; who waits has a bound
                self.world.time.after_ms(self._delay_ms(), event.set)


class RemoteStore(CoalescedFace):
    """What a process has: the real face of a store that is asked in batches."""

    _timeout_s = TIMEOUT_MS / 1000

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._server = process.world.server
        self._mixed = process.world.scenario.mixed
        self.given_up: dict[int, Effect[Any]] = {}
        """Calls whose callers have been told that there is no answer."""

    async def _call(self, call: Effect[Any]) -> Any:
        oracle = self._process.world.oracle
        oracle.asked(self._process, call)
        self.given_up.pop(id(call), None)  # it is asked again
        try:
            return await super()._call(call)
        except StoreTimeout:
            self.given_up[id(call)] = call
            oracle.told_failure([call])
            raise

    async def doubts(self, before: frozenset[str] | None) -> frozenset[str]:
        await super().doubts(before)
        doubts: frozenset[str] = (await self._server.ask(self._process, [Doubts(before)]))[0]
        if doubts:
            self._process.world.reached.add("claim in doubt")
        return doubts

    async def _send(self, calls: Calls) -> Sequence[Any]:
        return await self._server.ask(self._process, calls)

    def _lane(self, call: Effect[Any]) -> object:
        return "all" if self._mixed else super()._lane(call)

    async def purge(self, *, limit: int) -> int:
        raise NotImplementedError("the world purges")

    async def close(self) -> None:
        await self._drain()


class WatchableStore(RemoteStore):
    """The same, of a store that tells when a key changes."""

    async def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        event = asyncio.Event()
        self._server.watch(key, event)
        try:
            record: Record | None = await self.get(key)
            if record is None or record.owner != owner or not record.in_progress():
                return True
            await asyncio.wait_for(event.wait(), timeout_ms / 1000)
        except TimeoutError:
            return False
        finally:
            self._server.unwatch(key, event)
        return True
