"""The processes of a history: relays, and consumers with their connections. They are killed, paused and drained."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel import Policy
from semel.core.messages import Delivery
from semel.core.verdicts import Settling, Verdict
from semel.errors import NotExecuted
from semel.events import Event
from semel.inbox import AsyncInbox
from semel.inbox.consumers import AsyncConsumer
from semel.inbox.settings import InboxOptions
from semel.outbox.relay import Relay
from simulation.application import WorkFailed
from simulation.messages.broker import Given, RemotePublisher
from simulation.messages.depot import RemoteOutbox
from simulation.messages.scenario import Choices
from simulation.process import AnyProcess
from simulation.scenario import ProcessFault
from simulation.transactions.connection import Connection, Pool

if TYPE_CHECKING:
    from simulation.messages.oracle import Entry
    from simulation.messages.world import MessageWorld

HANDLER = "ledger"
WAIT_S = 0.2
"""How long a delivery waits for the transaction of another one."""
SLOW_S = 0.6


class Hopeless(Exception):
    """A final error."""


class MessageProcess(AnyProcess):
    world: MessageWorld
    stopped_s: float | None = None
    """Since when it has been asked to stop."""
    cancelled = False
    """It hears of a stop like this only when its task runs again."""

    def _strike(self, fault: ProcessFault) -> None:
        if fault.kind not in ("shutdown", "cancel"):
            super()._strike(fault)
        elif not self.loop.dead and self.stopped_s is None:
            self.world.note(self.name, "{}", fault.kind)
            self.world.reached.add(f"process {fault.kind}")
            self.drain(fault.ms, cancels=fault.kind == "cancel")

    def drain(self, down_ms: int, *, cancels: bool = False) -> None:
        raise NotImplementedError


class RelayProcess(MessageProcess):
    def __init__(self, world: MessageWorld, index: int, life: int) -> None:
        super().__init__(world, index, life)
        choices = world.scenario.choices
        self.owners: set[str] = set()
        self.unanswered = 0
        """How many of its calls to the outbox had no answer."""
        self.down_ms: int | None = None
        self.outbox = RemoteOutbox(self)
        self.relay = Relay(
            self.outbox,
            RemotePublisher(self),
            order=choices.order,
            batch=choices.batch,
            lease=choices.lease_ms / 1000,
            attempts_max=choices.attempts_max,
            dead_block=choices.dead_block,
            keep=choices.keep_ms / 1000,
            poll=1.0,
            concurrency=choices.concurrency,
            on_event=self._happened,
        )
        self.task = self.loop.create_task(self.relay.run())
        self.task.add_done_callback(self._ended)

    def _happened(self, event: Event) -> None:
        if not self.loop.dead:
            self.world.reached.add(event.kind.value)

    def drain(self, down_ms: int, *, cancels: bool = False) -> None:
        self.stopped_s, self.down_ms = self.world.time.now_s, down_ms
        if any(entry.owner in self.owners for entry in self.world.depot.outbox.entries.values()):
            self.world.reached.add("stopped in the middle")
        self.cancelled = cancels
        if cancels:
            self.task.cancel()
        else:
            self.relay.stop()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self.world.over or self.loop.dead:
            return
        self.world.note(self.name, "has stopped")
        self.world.oracle.relay_ended(self, None if task.cancelled() else task.exception())
        self.loop.dead = True
        if self.down_ms is not None:
            self.world.time.after_ms(self.down_ms, self.world.start, self.index, self.life + 1)


class ConsumerProcess(MessageProcess):
    def __init__(self, world: MessageWorld, index: int, life: int) -> None:
        super().__init__(world, index, life)
        self.pool = Pool(self)  # type: ignore[arg-type]  # it has what a pool asks of a process
        self.consumer = self._make_consumer(world.scenario.choices)
        self.handled: set[asyncio.Task[None]] = set()
        self._rests_until_s = 0.0
        world.time.after_ms(0, world.broker.push)

    def _make_consumer(self, choices: Choices) -> AsyncConsumer:
        options: InboxOptions = {"attempts_max": choices.attempts_max, "final_errors": (Hopeless,)}
        if choices.guarantee == "exactly-once":
            inbox = AsyncInbox(HANDLER, **options)
            return inbox.consumer(self._write, begin=self.pool.begin, wait=WAIT_S, tries_max=choices.tries_max)
        options["policy"] = Policy(guarantee=choices.guarantee, lease=choices.lease_ms / 1000)
        return AsyncInbox(HANDLER, store=self.world.leases.face_of(self), **options).consumer(self._send)

    def has_room(self) -> bool:
        rests = self.world.time.now_s < self._rests_until_s
        full = len(self.handled) >= self.world.scenario.choices.prefetch
        return not self.loop.dead and self.stopped_s is None and not rests and not full

    def receive(self, given: Sequence[Given]) -> None:
        task = self.loop.create_task(self._receive(given))
        self.handled.add(task)
        task.add_done_callback(self._received)

    async def _receive(self, given: Sequence[Given]) -> None:
        """What an adapter of a broker does."""
        deliveries = [each.delivery for each in given]
        if len(deliveries) == 1:
            verdicts = [await self.consumer(deliveries[0])]
        else:
            self.world.reached.add("deliveries together")
            verdicts = await self.consumer.handle_batch(deliveries)
        for delivery, verdict in zip(deliveries, verdicts, strict=True):
            self._judged(delivery, verdict)
        self.world.broker.settle(given, verdicts)

    def _judged(self, delivery: Delivery, verdict: Verdict) -> None:
        self.world.note(self.name, "{} is {}: {}", delivery.id, verdict.handling.name, verdict.settling.value)
        guarantee = self.world.scenario.choices.guarantee
        told = "judged" if guarantee == "exactly-once" else guarantee
        self.world.reached.add(f"{told} {verdict.handling.name.lower()}")
        self.world.oracle.judged(delivery, verdict)
        if verdict.settling is Settling.STOP:
            self._rests_until_s = self.world.time.now_s + verdict.delay_ms / 1000
            self.world.time.after_ms(verdict.delay_ms + 1, self.world.broker.push)

    def _received(self, task: asyncio.Task[None]) -> None:
        self.handled.discard(task)
        if self.world.over or self.loop.dead:
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.oracle.violated("no-unexpected-exception", f"a consumer raised {error!r}")
        self.world.time.after_ms(0, self.world.broker.push)
        if self.stopped_s is not None and not self.handled:
            self.world.time.after_ms(0, self.crash, self.down_ms)

    def drain(self, down_ms: int, *, cancels: bool = False) -> None:
        """It takes no more, and ends when all is judged; or its deliveries are cancelled."""
        self.stopped_s, self.down_ms = self.world.time.now_s, down_ms
        for task in self.handled if cancels else ():
            task.cancel()
        if not self.handled:
            self.crash(down_ms)

    def crash(self, down_ms: int) -> None:
        if not self.loop.dead:
            super().crash(down_ms)
            self.world.server.lose_process(self)  # type: ignore[arg-type]
            self.world.broker.lose(self)

    async def _write(self, connection: Connection, delivery: Delivery) -> None:
        """A handler with a transaction: it writes two rows."""
        entry = self.world.oracle.entered(delivery)
        await connection.write(entry.number, 0)
        await self._do(entry)
        await connection.write(entry.number, 1)
        entry.returned = True

    async def _send(self, delivery: Delivery) -> None:
        """A handler under a lease: its effect is elsewhere, and nothing takes it back."""
        entry = self.world.oracle.entered(delivery)
        await self._do(entry)
        self.world.oracle.sent(entry)
        await asyncio.sleep(0.001)
        entry.returned = True

    async def _do(self, entry: Entry) -> None:
        """Whatever else the scenario has for this message."""
        planned = self.world.planned(entry.id)
        if planned.handling == "slow":
            await asyncio.sleep(SLOW_S)
        if planned.handling == "final":
            entry.is_final = True
            raise Hopeless("as the scenario has it")
        if planned.handling == "raises-always" or (planned.handling == "raises" and entry.nth <= planned.times):
            raise WorkFailed("as the scenario has it")
        if planned.handling == "nothing-done" and entry.nth <= planned.times:
            raise NotExecuted("as the scenario has it")
