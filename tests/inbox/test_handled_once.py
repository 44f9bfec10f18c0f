"""`assert_handled_once`: every message twice at once, for the tests of users."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Mapping

import pytest

import semel
from inbox.shop import Shop, a_delivery, raising
from semel.inbox import AsyncInbox, Delivery, Handling, Inbox
from semel.testing import aassert_handled_once, assert_handled_once
from transaction.modes import MODES


def test_a_consumer_with_a_record_passes(urls: Mapping[str, str]) -> None:
    [mode] = [each for each in MODES if each.name == "psycopg"]
    shop = Shop(mode, urls["postgres"])
    deliveries = [a_delivery() for _ in range(3)]
    verdicts = assert_handled_once(shop.consumer, deliveries, effects=shop.effects, copies=3)
    assert Counter(verdict.handling for verdict in verdicts) == {Handling.HANDLED: 3, Handling.DUPLICATE: 6}


def test_the_same_for_tasks() -> None:
    sent: list[str] = []

    async def handle(delivery: Delivery) -> None:
        await asyncio.sleep(0.01)
        sent.append(str(delivery.id))

    async def main() -> None:
        consumer = AsyncInbox("orders.mailer", store=semel.open_async_store("memory://")).consumer(handle)
        deliveries = [a_delivery() for _ in range(5)]
        await aassert_handled_once(consumer, deliveries, effects=lambda delivery: sent.count(str(delivery.id)))

    asyncio.run(main())


def test_a_consumer_whose_deliveries_have_no_stable_id_is_found_out() -> None:
    sent: list[bytes] = []
    inbox = Inbox("orders.mailer", store=semel.open_store("memory://"))
    consumer = inbox.consumer(lambda delivery: sent.append(delivery.payload), id=lambda delivery: uuid.uuid4().hex)
    with pytest.raises(AssertionError, match="took effect 2 times"):
        assert_handled_once(consumer, [a_delivery()], effects=lambda delivery: sent.count(delivery.payload))


def test_a_message_that_is_never_acknowledged_is_named(urls: Mapping[str, str]) -> None:
    [mode] = [each for each in MODES if each.name == "sqlite3"]
    shop, delivery = Shop(mode, urls["sqlite"]), a_delivery()
    shop.then = raising(ValueError("it burnt"))
    with pytest.raises(AssertionError, match="was not acknowledged: dead letter, because ValueError: it burnt"):
        assert_handled_once(shop.consumer, [delivery])


@pytest.mark.parametrize(("count", "copies"), [(0, 2), (1, 1), (1_000, 2)])
def test_what_would_show_nothing_is_refused(count: int, copies: int) -> None:
    consumer = Inbox("orders.mailer", store=semel.open_store("memory://")).consumer(lambda delivery: None)
    with pytest.raises(ValueError, match=r"at least 2|deliveries, not"):
        assert_handled_once(consumer, [a_delivery()] * count, copies=copies)
