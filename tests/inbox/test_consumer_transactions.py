"""Consumers whose handler writes to the database of the record: every verdict, on every kind of connection."""

from __future__ import annotations

import asyncio
import inspect
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from semel.events import Event, EventKind
from semel.inbox import AsyncInbox, Delivery, Handling, Inbox, Settling, Verdict
from transaction.modes import MODES, Mode, effects

HANDLER = "orders.projector"


class Shop:
    """A handler that writes one effect, then does what `then` says; and a consumer of it, called from sync code."""

    def __init__(self, mode: Mode, url: str, **options: Any) -> None:
        self.mode, self.url = mode, url
        self.begin = mode.opener(url)
        self.then: Callable[[Delivery], object] = lambda delivery: None
        self.events: list[Event] = []
        chosen = {"begin": self.begin} | {name: options.pop(name) for name in list(options) if name in CONSUMER}
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
        return asyncio.run(reply) if inspect.isawaitable(reply) else reply

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

    def effects(self, name: str) -> int:
        return effects(self.url, name)


CONSUMER = {"id", "begin", "payload_fingerprint", "wait", "tries_max"}
FEW = [mode for mode in MODES if mode.name in ("psycopg", "asyncpg", "sqlite3", "aiosqlite")]


@pytest.fixture(params=MODES, ids=lambda mode: mode.name)
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=FEW, ids=lambda mode: mode.name)
def some_mode(request: pytest.FixtureRequest) -> Mode:
    return request.param  # type: ignore[no-any-return]


def a_delivery() -> Delivery:
    name = uuid.uuid4().hex
    return Delivery(name.encode(), id=name)


def handlings(verdicts: list[Verdict]) -> list[Handling]:
    return [verdict.handling for verdict in verdicts]


def raising(error: BaseException) -> Callable[[Delivery], object]:
    def then(delivery: Delivery) -> object:
        raise error

    return then


def test_a_message_takes_effect_once_however_often_it_is_delivered(mode: Mode, urls: Mapping[str, str]) -> None:
    shop, delivery = Shop(mode, urls[mode.database]), a_delivery()
    verdicts = shop.deliver(delivery, delivery, delivery)
    assert handlings(verdicts) == [Handling.HANDLED, Handling.DUPLICATE, Handling.DUPLICATE]
    assert {verdict.settling for verdict in verdicts} == {Settling.ACKNOWLEDGE}
    assert shop.effects(str(delivery.id)) == 1
    judged = [event.handling for event in shop.events if event.kind is EventKind.DELIVERY_JUDGED]
    assert judged == ["handled", "duplicate", "duplicate"]


def test_a_handler_that_raises_is_rolled_back_counted_and_run_again(mode: Mode, urls: Mapping[str, str]) -> None:
    shop, delivery = Shop(mode, urls[mode.database], attempts_max=3), a_delivery()
    shop.then = raising(ValueError("the printer is on fire"))
    [first, second] = shop.deliver(delivery, delivery)
    assert (first.handling, first.attempt, first.reason) == (Handling.RAISED, 1, "ValueError: the printer is on fire")
    assert (second.attempt, second.delay_ms, second.counted) == (2, 2_000, True)
    assert shop.effects(str(delivery.id)) == 0
    shop.then = lambda delivery: None
    assert handlings(shop.deliver(delivery, delivery)) == [Handling.HANDLED, Handling.DUPLICATE]
    assert shop.effects(str(delivery.id)) == 1
