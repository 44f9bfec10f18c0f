"""Duplicated deliveries: every message reaches a consumer twice at once, as brokers do it now and then.

assert_handled_once(consumer, [Delivery(b"{}", id="m-1"), …], effects=lambda delivery: count_rows(delivery.id))
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from semel.inbox import AsyncConsumer, Consumer, Delivery, Settling, Verdict

DELIVERIES_MAX = 1_000
ROUNDS_MAX = 20
"""How often a message is delivered again before it counts as stuck."""
PAUSE_MAX_S = 0.05
"""A delay of a verdict is cut to this: it is the broker's business, and tests are short."""
Effects = Callable[[Delivery], int]


def assert_handled_once(
    consumer: Consumer, deliveries: Sequence[Delivery], *, effects: Effects | None = None, copies: int = 2
) -> list[Verdict]:
    """Deliver each message `copies` times at once, from threads, and assert that it is handled once.

    What is to be delivered again is, until it is acknowledged. `effects` counts the effects of a message: that must be
    1 in the end. Without it, only the verdicts are looked at. The last verdict on each copy is returned, copy by copy.
    """
    copied = _copied(deliveries, copies)
    with ThreadPoolExecutor(len(copied)) as threads:
        verdicts = list(threads.map(lambda delivery: _deliver(consumer, delivery), copied))
    _check(copied, verdicts, effects)
    return verdicts


async def aassert_handled_once(
    consumer: AsyncConsumer, deliveries: Sequence[Delivery], *, effects: Effects | None = None, copies: int = 2
) -> list[Verdict]:
    """`assert_handled_once` for an `AsyncConsumer`, from tasks of the running loop."""
    copied = _copied(deliveries, copies)
    verdicts = list(await asyncio.gather(*(_adeliver(consumer, delivery) for delivery in copied)))
    _check(copied, verdicts, effects)
    return verdicts


def _copied(deliveries: Sequence[Delivery], copies: int) -> list[Delivery]:
    if copies < 2:
        raise ValueError(f"copies must be at least 2, not {copies}: one delivery shows nothing about duplicates")
    if not 0 < len(deliveries) * copies <= DELIVERIES_MAX:
        raise ValueError(f"give 1 to {DELIVERIES_MAX // copies} deliveries, not {len(deliveries)}")
    return [delivery for delivery in deliveries for _ in range(copies)]


def _deliver(consumer: Consumer, delivery: Delivery) -> Verdict:
    verdict = consumer(delivery)
    for _ in range(ROUNDS_MAX):
        if verdict.settling is not Settling.DELIVER_AGAIN:
            break
        time.sleep(_rest_s(verdict))
        verdict = consumer(delivery)
    return verdict


async def _adeliver(consumer: AsyncConsumer, delivery: Delivery) -> Verdict:
    verdict = await consumer(delivery)
    for _ in range(ROUNDS_MAX):
        if verdict.settling is not Settling.DELIVER_AGAIN:
            break
        await asyncio.sleep(_rest_s(verdict))
        verdict = await consumer(delivery)
    return verdict


def _check(copied: Sequence[Delivery], verdicts: Sequence[Verdict], effects: Effects | None) -> None:
    for delivery, verdict in zip(copied, verdicts, strict=True):
        assert verdict.settling is Settling.ACKNOWLEDGE, (
            f"the message {delivery.id!r} was not acknowledged: {verdict.settling.value}, because {verdict.reason}"
        )
    if effects is None:
        return
    for delivery in {id(delivery): delivery for delivery in copied}.values():
        count = effects(delivery)
        assert count == 1, f"the message {delivery.id!r} was delivered several times and took effect {count} times"


def _rest_s(verdict: Verdict) -> float:
    return min(verdict.delay_ms / 1000, PAUSE_MAX_S)
