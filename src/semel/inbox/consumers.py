"""The consumer: one function from a delivery to a verdict. The adapters of the brokers carry the verdict out.

It raises for nothing that a message or its handler did. Only cancellation, `KeyboardInterrupt` and the like go through:
a transaction is rolled back then, and a lease is left to lapse.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from semel.core.attempts import CountAttempt
from semel.core.consumer import NamedMessage, RefusedMessage, TryMessage, TryTogether, consume
from semel.core.effects import Effect, Emit, Pause
from semel.core.messages import Delivery
from semel.core.verdicts import Verdict
from semel.errors import StoreError, StoreUnavailable
from semel.inbox.failures import reason_of
from semel.inbox.leases import AsyncLeasedTries, LeasedTries
from semel.inbox.settings import ConsumerSettings
from semel.inbox.transactions import AsyncTransactionTries, Incoming, TransactionTries
from semel.runtime.drive import adrive, drive
from semel.runtime.listener import logged

BATCH_MAX = 1_000
"""How many deliveries `handle_batch` takes at once."""
TOGETHER_MAX = 100
"""How many messages are handled in one transaction."""


class Batch:
    """Deliveries that came together, and what each of them is."""

    def __init__(self, deliveries: Sequence[Delivery], settings: ConsumerSettings) -> None:
        self._deliveries = deliveries
        self.messages: list[NamedMessage | RefusedMessage] = [settings.name(each) for each in deliveries]

    def incoming(self, at: int) -> Incoming:
        message = self.messages[at]
        assert isinstance(message, NamedMessage), "a delivery without an id is never tried"
        return Incoming(self._deliveries[at], message)


class ConsumerFace:
    """What both kinds of consumer share."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._listener = logged(settings.inbox.on_event)

    @property
    def handler(self) -> str:
        """The name of the inbox."""
        return self._settings.inbox.handler

    def _split(self, deliveries: Sequence[Delivery]) -> list[Batch]:
        if len(deliveries) > BATCH_MAX:
            raise ValueError(f"a batch has {len(deliveries)} deliveries, the limit is {BATCH_MAX}: fetch fewer at once")
        starts = range(0, len(deliveries), TOGETHER_MAX)
        return [Batch(deliveries[start : start + TOGETHER_MAX], self._settings) for start in starts]


class Consumer(ConsumerFace):
    """For threads: `inbox.consumer(fn)` makes it. It holds nothing for one delivery, so threads may share it."""

    def __init__(self, tries: TransactionTries[Any] | LeasedTries, settings: ConsumerSettings) -> None:
        super().__init__(settings)
        self._tries = tries

    def __call__(self, delivery: Delivery) -> Verdict:
        """Handle one delivery, and say what the broker is to be told."""
        [verdict] = self.handle_batch([delivery])
        return verdict

    def handle_batch(self, deliveries: Sequence[Delivery]) -> list[Verdict]:
        """Handle several deliveries, and give their verdicts in the same order.

        A message that comes twice in the batch is handled once. With `begin=`, all are handled in one transaction; if
        anything fails there, it is rolled back, and they are handled one by one.
        """
        together = isinstance(self._tries, TransactionTries)
        verdicts: list[Verdict] = []
        for batch in self._split(deliveries):
            verdicts += drive(consume(batch.messages, self._limits, together=together), self._performer(batch))
        return verdicts

    def _performer(self, batch: Batch) -> Any:
        def perform(effect: Effect[Any]) -> Any:
            match effect:
                case TryMessage(at):
                    return self._tries.once(batch.incoming(at))
                case TryTogether(places):
                    assert isinstance(self._tries, TransactionTries)
                    return self._tries.together([batch.incoming(at) for at in places])
                case CountAttempt():
                    try:
                        return self._tries.count(effect)
                    except Exception as error:
                        raise uncounted(error) from error
                case Pause(pause_ms):
                    return time.sleep(pause_ms / 1000)
                case Emit(event):
                    return self._listener(event)
                case _:
                    raise TypeError(f"no consumer performs {effect!r}")

        return perform


class AsyncConsumer(ConsumerFace):
    """For tasks: `AsyncInbox.consumer(fn)` makes it. Await it with a delivery; it gives a `Verdict`."""

    def __init__(self, tries: AsyncTransactionTries[Any] | AsyncLeasedTries, settings: ConsumerSettings) -> None:
        super().__init__(settings)
        self._tries = tries

    async def __call__(self, delivery: Delivery) -> Verdict:
        """Handle one delivery, and say what the broker is to be told."""
        [verdict] = await self.handle_batch([delivery])
        return verdict

    async def handle_batch(self, deliveries: Sequence[Delivery]) -> list[Verdict]:
        """Handle several deliveries, and give their verdicts in the same order, as `Consumer.handle_batch` does."""
        together = isinstance(self._tries, AsyncTransactionTries)
        verdicts: list[Verdict] = []
        for batch in self._split(deliveries):
            verdicts += await adrive(consume(batch.messages, self._limits, together=together), self._performer(batch))
        return verdicts

    def _performer(self, batch: Batch) -> Any:
        async def perform(effect: Effect[Any]) -> Any:
            match effect:
                case TryMessage(at):
                    return await self._tries.once(batch.incoming(at))
                case TryTogether(places):
                    assert isinstance(self._tries, AsyncTransactionTries)
                    return await self._tries.together([batch.incoming(at) for at in places])
                case CountAttempt():
                    try:
                        return await self._tries.count(effect)
                    except Exception as error:
                        raise uncounted(error) from error
                case Pause(pause_ms):
                    return await asyncio.sleep(pause_ms / 1000)
                case Emit(event):
                    return self._listener(event)
                case _:
                    raise TypeError(f"no consumer performs {effect!r}")

        return perform


def uncounted(error: Exception) -> StoreError:
    """The failure to count an attempt, for the plan: a driver's own error says that its database is away."""
    return error if isinstance(error, StoreError) else StoreUnavailable(reason_of(error))
