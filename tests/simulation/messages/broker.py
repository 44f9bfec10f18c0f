"""The broker of a history: takes messages, delivers each at least once, and carries verdicts out.

It never recognises a message that it has: what is published twice is delivered twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.core.messages import Delivery, Message
from semel.core.verdicts import Settling, Verdict
from semel.errors import BrokerMisconfigured, BrokerUnavailable, NotPublished, Poison
from simulation.messages.scenario import Fault
from simulation.store import DELAYS_MS

if TYPE_CHECKING:
    from simulation.messages.process import ConsumerProcess, RelayProcess
    from simulation.messages.world import MessageWorld


@dataclass(frozen=True, eq=False)
class Given:
    """One delivery that has no verdict yet."""

    delivery: Delivery
    process: ConsumerProcess


class Broker:
    def __init__(self, world: MessageWorld) -> None:
        self.world = world
        self.ready: list[Delivery] = []
        self.given: list[Given] = []
        self.dead: list[Delivery] = []
        self.delayed = 0
        self._calls: Counter[str] = Counter()
        self._tries: Counter[str] = Counter()
        self._away_until_s = 0.0

    def is_quiet(self) -> bool:
        return not self.ready and not self.given and not self.delayed

    def heal(self) -> None:
        self._away_until_s = 0.0
        self.push()

    def _is_away(self) -> bool:
        return self.world.time.now_s < self._away_until_s

    # What publishers ask for

    def take(self, process: RelayProcess, message: Message) -> asyncio.Future[None]:
        reply: asyncio.Future[None] = process.loop.create_future()
        after, go_ms, fault = self.world.time.after_ms, self._delay_ms(), self.world.fault("publish", self._calls)
        self.world.note("broker", "{} publishes {}", process.name, message.id)
        if self._is_away():
            self.world.reached.add("broker away")
            after(go_ms, self._reply, process, reply, message, BrokerUnavailable("the broker is away"))
        elif fault is not None:
            self.world.reached.add(f"publish {fault.kind}")
            self._strike(fault, process, message, reply)
        elif (refusal := self._refusal(message)) is not None:
            after(go_ms, self._reply, process, reply, message, refusal)
        else:
            after(go_ms, self._serve, process, reply, message, self._delay_ms())
        return reply

    def _serve(self, process: RelayProcess, reply: asyncio.Future[None], message: Message, back_ms: int) -> None:
        """Take the message and confirm it, unless the broker went away meanwhile."""
        error = None if self._arrive(message) else BrokerUnavailable("the broker is away")
        self.world.time.after_ms(back_ms, self._reply, process, reply, message, error)

    def _refusal(self, message: Message) -> Exception | None:
        """What this message has to do with it."""
        planned = self.world.planned(message.id)
        self._tries[message.id] += 1
        if planned.publishing == "poison":
            return Poison("too large")
        if planned.publishing == "fails-always" or (
            planned.publishing == "fails" and self._tries[message.id] <= planned.times
        ):
            return NotPublished("no queue is bound")
        return None

    def _strike(self, fault: Fault, process: RelayProcess, message: Message, reply: asyncio.Future[None]) -> None:
        after, go_ms, ms = self.world.time.after_ms, self._delay_ms(), fault.ms
        match fault.kind:
            case "lost":
                pass
            case "reply-lost":
                after(go_ms, self._arrive, message)
            case "late":
                after(go_ms, self._reply, process, reply, message, BrokerUnavailable("no confirmation"))
                after(go_ms + ms, self._arrive, message)
            case "slow-reply":
                after(go_ms, self._serve, process, reply, message, ms)
            case "crash":
                after(go_ms, self._arrive, message)
                after(go_ms, process.crash, ms)
            case "outage":
                self._go_away(ms)
                after(go_ms, self._reply, process, reply, message, BrokerUnavailable("the broker went away"))
            case "closed":
                after(go_ms, self._reply, process, reply, message, ConnectionResetError("closed"))
            case "misconfigured":
                after(go_ms, self._reply, process, reply, message, BrokerMisconfigured("no such exchange"))
            case "error":
                after(go_ms, self._reply, process, reply, message, RuntimeError("a driver of a third party"))
            case _:
                after(go_ms, self._reply, process, reply, message, NotPublished("refused this time"))

    def _reply(
        self, process: RelayProcess, reply: asyncio.Future[None], message: Message, error: Exception | None
    ) -> None:
        self.world.oracle.replied_to(message, error)
        if process.loop.dead or reply.done():
            self.world.reached.add("confirmation to nobody")
        elif error is None:
            reply.set_result(None)
        else:
            reply.set_exception(error)

    def _arrive(self, message: Message) -> bool:
        if self._is_away():
            return False
        self.world.oracle.accepted(message)
        delivery = Delivery(message.payload, message.id, message.topic)
        self.ready.append(delivery)
        fault = self.world.fault("deliver", self._calls)
        if fault is not None and fault.kind == "duplicated":
            self.ready.append(delivery)
        elif fault is not None:
            id = message.id if fault.kind == "foreign" else None
            self.world.oracle.foreign.update([] if id is None else [id])
            self.ready.append(Delivery(b"of another sender", id, message.topic))
        self.world.time.after_ms(self._delay_ms(), self.push)
        return True

    # What consumers get

    def push(self) -> None:
        """Give what is ready to consumers that have room."""
        while self.ready and not self._is_away():
            open_to_it = [process for process in self.world.consumers() if process.has_room()]
            if not open_to_it:
                return
            process = self.world.time.rng.choice(open_to_it)
            count = self.world.scenario.choices.together
            given = [Given(delivery, process) for delivery in self.ready[:count]]
            del self.ready[:count]
            self.given += given
            process.receive(given)
            for each in given:
                self.world.time.after_ms(self.world.scenario.choices.ack_wait_ms, self._lapse, each)

    def _lapse(self, given: Given) -> None:
        if given in self.given:
            self.world.reached.add("delivered again without a verdict")
            self._give_back(given)

    def _give_back(self, given: Given) -> None:
        self.given.remove(given)
        self.ready.append(given.delivery)
        self.world.time.after_ms(self._delay_ms(), self.push)

    def lose(self, process: ConsumerProcess) -> None:
        """Its connection is gone."""
        for given in [each for each in self.given if each.process is process]:
            self._give_back(given)

    def _go_away(self, ms: int) -> None:
        self._away_until_s = self.world.time.now_s + ms / 1000
        for given in list(self.given):
            self._give_back(given)
        self.world.time.after_ms(ms + 1, self.push)

    # Verdicts

    def settle(self, several: Sequence[Given], verdicts: Sequence[Verdict]) -> None:
        for given, verdict in zip(several, verdicts, strict=True):
            go_ms, fault = self._delay_ms(), self.world.fault("verdict", self._calls)
            if fault is not None and fault.kind == "outage":
                self._go_away(fault.ms)
            elif fault is None or fault.kind == "late":
                self.world.time.after_ms(go_ms if fault is None else fault.ms, self._carry_out, given, verdict)

    def _carry_out(self, given: Given, verdict: Verdict) -> None:
        if self._is_away() or given not in self.given:
            self.world.reached.add("verdict too late")
            return
        self.given.remove(given)
        match verdict.settling:
            case Settling.ACKNOWLEDGE:
                pass
            case Settling.DELIVER_AGAIN | Settling.STOP:
                self.delayed += 1
                self.world.time.after_ms(verdict.delay_ms, self._deliver_again, given.delivery)
            case Settling.DEAD_LETTER | Settling.PARK:
                self.dead.append(given.delivery)
                self.world.oracle.buried(given.delivery)
        self.push()

    def _deliver_again(self, delivery: Delivery) -> None:
        self.delayed -= 1
        self.ready.append(delivery)
        self.push()

    def deliver_dead_again(self) -> None:
        """An operator gives the dead letters back to their queue."""
        if self.dead:
            self.world.reached.add("dead letters delivered again")
            self.ready += self.dead
            self.dead.clear()
            self.push()

    def _delay_ms(self) -> int:
        return DELAYS_MS[int(self.world.time.rng.random() * len(DELAYS_MS))]


class RemotePublisher:
    """What a relay has of it."""

    def __init__(self, process: RelayProcess) -> None:
        self._process = process

    async def publish(self, message: Message) -> None:
        self._process.world.oracle.starts(self._process, message)
        await self._process.world.broker.take(self._process, message)

    async def close(self) -> None:
        raise AssertionError("a relay closes only what it has opened")
