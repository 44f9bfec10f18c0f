"""The outbox of a history: the pure model behind a network that delays and loses, and the face that relays have for it.

Transactions add messages to it: each number is given when its message is added, and seen when the transaction commits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from semel.core import outbox_model
from semel.core.effects import Effect
from semel.core.messages import Message
from semel.core.outbox import (
    DiscardMessages,
    MessageState,
    OutboxCall,
    OutboxEntry,
    PurgeMessages,
    RedriveMessages,
    SettleMessages,
    TakeMessages,
    checked_call,
)
from semel.errors import StoreUnavailable
from simulation.messages.scenario import Adding, Fault
from simulation.store import DELAYS_MS

if TYPE_CHECKING:
    from simulation.messages.process import RelayProcess
    from simulation.messages.world import MessageWorld

T = TypeVar("T")
NAMES: dict[type[Any], str] = {TakeMessages: "take", SettleMessages: "settle", PurgeMessages: "purge"}


class Depot:
    """Answers by its own clock. What it acknowledges it keeps."""

    def __init__(self, world: MessageWorld) -> None:
        self.world = world
        self.outbox = outbox_model.Outbox()
        self.open = 0
        """How many transactions have not ended."""
        self._calls: Counter[str] = Counter()
        self._away_until_s = 0.0

    def entry_of(self, id: str) -> OutboxEntry | None:
        return next((entry for entry in self.outbox.entries.values() if entry.message.id == id), None)

    def waiting(self) -> list[OutboxEntry]:
        """What is still to be published; a message may wait for ever for a dead one of its key."""
        choices, dead = self.world.scenario.choices, set[str]()
        found = []
        for entry in self.outbox.in_order():
            key = entry.message.key
            if entry.state is MessageState.DEAD and choices.dead_block and key is not None:
                dead.add(key)
            elif entry.state is MessageState.WAITING and key in dead:
                self.world.reached.add("key blocked")
            elif entry.state is MessageState.WAITING:
                found.append(entry)
        return found

    # Transactions of the application

    def begin(self, adding: Adding) -> None:
        self.open += 1
        reserved: list[tuple[int, Message, frozenset[str]]] = []
        for number in adding.adds:
            message = self.world.message(number)
            self.outbox, sequence = outbox_model.reserve(self.outbox)
            seen = {entry.message.id for entry in self.outbox.entries.values() if entry.message.key == message.key}
            reserved.append((sequence, message, frozenset(seen)))
        self.world.time.after_ms(adding.takes_ms, self._end, adding, reserved)

    def _end(self, adding: Adding, reserved: list[tuple[int, Message, frozenset[str]]]) -> None:
        self.open -= 1
        if not adding.commits:
            self.world.reached.add("rolled back")
            return
        ours: set[str] = set()
        for sequence, message, before in reserved:
            self.world.reached.update(["late commit"] if sequence < max(self.outbox.entries, default=0) else [])
            self.outbox, added = outbox_model.show(self.outbox, sequence, message, self.world.database_ms())
            self.world.note("outbox", "{} with number {}: {}", message.id, sequence, added)
            earlier = {id for id in ours if self.world.message(int(id[1:])).key == message.key}
            self.world.oracle.committed(message, before | earlier, is_new=added)
            ours.update([message.id] if added else [])
        self.world.hint()

    # Operators

    def redrive(self) -> None:
        if self.apply(RedriveMessages(tuple(self.outbox.entries))):
            self.world.reached.add("redriven")
            self.world.hint()

    def discard(self) -> None:
        if self.apply(DiscardMessages(tuple(self.outbox.entries))):
            self.world.reached.add("discarded")

    # The way to it

    def ask(self, process: RelayProcess, call: OutboxCall[T]) -> asyncio.Future[T]:
        reply: asyncio.Future[T] = process.loop.create_future()
        name, after, go_ms = NAMES[type(call)], self.world.time.after_ms, self._delay_ms()
        fault = self.world.fault(name, self._calls)
        if self.world.time.now_s < self._away_until_s:
            self.world.reached.add("outbox away")
            after(go_ms, self._fail, process, reply)
        elif fault is None:
            after(go_ms, self._arrive, process, call, reply, self._delay_ms())
        else:
            self._strike(fault, process, call, reply)
        return reply

    def _strike(self, fault: Fault, process: RelayProcess, call: OutboxCall[T], reply: asyncio.Future[T]) -> None:
        after, go_ms, ms = self.world.time.after_ms, self._delay_ms(), fault.ms
        match fault.kind:
            case "lost":
                after(ms, self._fail, process, reply)
            case "reply-lost":
                after(go_ms, self._arrive, process, call, None, 0)
                after(go_ms + ms, self._fail, process, reply)
            case "late":
                after(go_ms, self._fail, process, reply)
                after(go_ms + ms, self._arrive, process, call, None, 0)
            case "slow-request":
                after(ms, self._arrive, process, call, reply, go_ms)
            case "slow-reply":
                after(go_ms, self._arrive, process, call, reply, ms)
            case "crash":
                after(go_ms, self._arrive, process, call, None, 0)
                after(go_ms, process.crash, ms)
            case "outage":
                self._away_until_s = self.world.time.now_s + ms / 1000
                after(go_ms, self._fail, process, reply)
            case _:
                after(go_ms, self._fail, process, reply)

    def _arrive(
        self, process: RelayProcess, call: OutboxCall[T], reply: asyncio.Future[T] | None, back_ms: int
    ) -> None:
        answer = self.apply(call)
        self.world.note("outbox", "{}: {} -> {}", process.name, call, answer)
        if isinstance(call, SettleMessages) and process.loop.dead:
            self.world.reached.add("settled by the dead")
        if reply is not None:
            self.world.time.after_ms(back_ms, self._answer, process, reply, answer)

    def apply(self, call: Effect[T]) -> T:
        before = self.outbox
        self.outbox, answer = outbox_model.answer(before, call, self.world.database_ms())
        self.world.oracle.changed(before, self.outbox, call)
        return answer

    def _answer(self, process: RelayProcess, reply: asyncio.Future[T], answer: T) -> None:
        if not process.loop.dead and not reply.done():
            reply.set_result(answer)

    def _fail(self, process: RelayProcess, reply: asyncio.Future[Any]) -> None:
        process.unanswered += 1
        if not process.loop.dead and not reply.done():
            reply.set_exception(StoreUnavailable("no answer"))

    def heal(self) -> None:
        self._away_until_s = 0.0

    def refuses_to_wait(self) -> bool:
        return self.world.fault("wait", self._calls) is not None

    def _delay_ms(self) -> int:
        return DELAYS_MS[int(self.world.time.rng.random() * len(DELAYS_MS))]


class RemoteOutbox:
    """What a relay has: the outbox of an async store."""

    def __init__(self, process: RelayProcess) -> None:
        self._process = process
        self._depot = process.world.depot
        self.hint = asyncio.Event()

    async def outbox(self, call: Effect[T]) -> T:
        if isinstance(call, TakeMessages):
            self._process.owners.add(call.owner)
        return await self._depot.ask(self._process, checked_call(call))

    async def wait_for_messages(self, timeout_ms: int) -> None:
        if self._depot.refuses_to_wait():
            raise StoreUnavailable("no connection for hints")
        self.hint.clear()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.hint.wait()
        except TimeoutError:
            return
