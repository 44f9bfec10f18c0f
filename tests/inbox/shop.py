"""A handler that writes effects into a database, behind a consumer, on any kind of connection."""

from __future__ import annotations

import asyncio
import inspect
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from semel.events import Event, EventKind
from semel.inbox import AsyncInbox, Delivery, Handling, Inbox, Verdict
from transaction.modes import Mode, effects

HANDLER = "orders.projector"
CONSUMER = ("id", "begin", "payload_fingerprint", "wait", "tries_max")
"""Options of the consumer; the others are the inbox's."""


class Shop:
    """A handler that writes one effect, then does what `then` says; and a consumer of it, called from sync code."""

    def __init__(self, mode: Mode, url: str, **options: Any) -> None:
        self.mode, self.url = mode, url
        self.then: Callable[[Delivery], object] = nothing
        self.events: list[Event] = []
        chosen: dict[str, Any] = {"begin": mode.opener(url)}
        chosen |= {name: options.pop(name) for name in list(options) if name in CONSUMER}
        inbox: Any = (AsyncInbox if mode.is_async else Inbox)(
            options.pop("handler", HANDLER), on_event=self.events.append, **options
        )
        self.consumer: Any = inbox.consumer(self.ahandle if mode.is_async else self.handle, **chosen)

    def handle(self, connection: Any, delivery: Delivery) -> None:
        self.mode.write(connection, delivery.payload.decode())
        self.then(delivery)

    async def ahandle(self, connection: Any, delivery: Delivery) -> None:
        await self.mode.write(connection, delivery.payload.decode())
        done = self.then(delivery)
        if inspect.isawaitable(done):
            await done

    def deliver(self, *deliveries: Delivery) -> list[Verdict]:
        """One by one."""
        return [self.end(self.consumer(each)) for each in deliveries]

    def deliver_batch(self, *deliveries: Delivery) -> list[Verdict]:
        found: list[Verdict] = self.end(self.consumer.handle_batch(deliveries))
        return found

    def end(self, reply: Any) -> Any:
        return asyncio.run(reply) if inspect.iscoroutine(reply) else reply

    def at_once(self, *deliveries: Delivery) -> list[Verdict]:
        """All in the same moment, from threads or tasks."""
        if self.mode.is_async:

            async def gather() -> list[Verdict]:
                return list(await asyncio.gather(*map(self.consumer, deliveries)))

            return asyncio.run(gather())
        verdicts: list[Verdict] = []
        threads = [
            threading.Thread(target=lambda each=each: verdicts.append(self.consumer(each))) for each in deliveries
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return verdicts

    def effects(self, delivery: Delivery) -> int:
        """How often it took effect: counted from outside."""
        return effects(self.url, delivery.payload.decode())

    @property
    def judged(self) -> list[str]:
        """The verdicts as the listener was told them."""
        return [event.handling for event in self.events if event.kind is EventKind.DELIVERY_JUDGED]


def a_delivery(payload: str = "", id: str | None = None) -> Delivery:
    """By default one that no other test uses."""
    name = uuid.uuid4().hex
    return Delivery((payload or name).encode(), id=id or name)


def handlings(verdicts: Sequence[Verdict]) -> list[Handling]:
    return [verdict.handling for verdict in verdicts]


def raising(error: BaseException) -> Callable[[Delivery], object]:
    def then(delivery: Delivery) -> object:
        raise error

    return then


def nothing(delivery: Delivery) -> None:
    """What a handler does that only writes."""
