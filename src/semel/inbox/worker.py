"""A worker takes deliveries from a broker, has a consumer handle them, and carries out its verdicts.

What all brokers share is here: how many deliveries are handled at once, heartbeats, pauses while the store or the
broker is away, and the drain at the end. A broker adds how to connect, take, keep and settle.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, Final, Generic, Protocol, TypedDict, TypeVar

from semel.core.messages import Delivery
from semel.core.policy_values import Duration
from semel.core.records import check_duration
from semel.core.verdicts import Settling, Verdict
from semel.errors import BrokerMisconfigured, Misuse
from semel.runtime.arguments import check_options

logger = logging.getLogger("semel")
CONCURRENCY, CONCURRENCY_MAX = 8, 1_000
DRAIN_S = 30.0
POLL_S = 1.0
"""How long a worker waits for a delivery before it looks whether it was stopped."""
CALL_S = 10.0
"""How long a broker may take to confirm."""
AWAY_FIRST_S, AWAY_S_MAX = 0.2, 10.0
"""The pauses while a broker is away: they double up to the second number."""
UNSETTLED_MS = 10_000
"""When a message is delivered again whose dead letter the broker refused."""
REASON_MAX = 500


class DeliveryConsumer(Protocol):
    """What handles deliveries: made by `AsyncInbox(…).consumer(…)`. It answers with a verdict, whatever happens."""

    @property
    def handler(self) -> str:
        """The inbox's name."""
        ...

    async def __call__(self, delivery: Delivery, /) -> Verdict: ...


class Received(Protocol):
    """One delivery in the hands of a worker, and what its broker can be told about it."""

    @property
    def delivery(self) -> Delivery: ...

    async def acknowledge(self) -> None: ...

    async def deliver_again(self, delay_ms: int) -> None: ...

    async def bury(self, verdict: Verdict) -> None:
        """Publish it as a dead letter. Once the broker has confirmed that, and only then, end the delivery."""
        ...


R = TypeVar("R", bound=Received)


class Source(Protocol[R]):
    """One connection to a broker, ready to take deliveries from it."""

    heartbeat_s: float | None
    """How often the broker is told of deliveries that are being handled; None if it waits without that."""

    async def take(self, most: int) -> Sequence[R]:
        """At most so many deliveries, as soon as there is one; none after `POLL_S`."""
        ...

    async def keep(self, handling: Sequence[R]) -> None:
        """Tell the broker that these are still being handled."""
        ...

    async def close(self) -> None: ...


class WorkerOptions(TypedDict, total=False):
    """The options that the consumers of all brokers share."""

    concurrency: int
    """How many deliveries are handled at once."""
    drain: Duration
    """How long `stop` lets handlers go on. What is cut off then is delivered again."""


class _Missing:
    """Stands for a dead-letter destination that the caller did not give."""


MISSING: Final = _Missing()


class BrokerConsumer(ABC, Generic[R]):
    """`await run()` consumes until `stop()`.

    The delivery is acknowledged after its record is stored, never before. A process that dies while handling leaves
    the delivery with the broker, which delivers it again.
    """

    failures: ClassVar[tuple[type[Exception], ...]]
    """The errors of the broker's client that mean: the broker is away, or did not confirm."""

    def __init__(self, consumer: DeliveryConsumer, options: WorkerOptions) -> None:
        check_options(options, WorkerOptions, type(self))
        self._consumer = consumer
        self.concurrency = _checked_concurrency(options.get("concurrency", CONCURRENCY))
        self._drain_s = milliseconds("drain", options.get("drain", DRAIN_S)) / 1000
        self._stopping = asyncio.Event()
        self._runs: asyncio.Task[Any] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused_until_s = 0.0

    @abstractmethod
    async def _open(self) -> Source[R]:
        """Connect, and refuse settings with which messages would be lost: `BrokerMisconfigured`."""

    async def run(self) -> None:
        """Consume until `stop()` is called, and then until begun work has ended.

        A broker that is away is waited for. Settings that lose messages raise `BrokerMisconfigured`.
        """
        if self._runs is not None:
            raise Misuse("run() was called before: make a new consumer for a new run")
        self._runs = asyncio.current_task()
        try:
            await self._run()
        finally:
            await self._end(0)

    def stop(self) -> None:
        """Take no more deliveries. `run` returns when those that are being handled have ended."""
        self._stopping.set()

    async def hold(self, delay_ms: int) -> None:
        """Wait, for a broker that cannot delay a delivery itself. Returns at once when the worker is stopped."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay_ms / 1000)

    async def _run(self) -> None:
        away_s = AWAY_FIRST_S
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(CALL_S):
                    source = await self._open()
                away_s = AWAY_FIRST_S
                await self._attend(source)
            except self.failures as error:
                await self._report_away(error, away_s)
            except asyncio.CancelledError as error:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                await self._report_away(error, away_s)  # a client library cancels what waits on a lost connection
            away_s = min(2 * away_s, AWAY_S_MAX)

    async def _report_away(self, error: BaseException, away_s: float) -> None:
        logger.warning("%s: the broker is away (%r): trying again in %.1f s", self._name, error, away_s)
        await self.hold(round(away_s * 1000))

    async def _attend(self, source: Source[R]) -> None:
        handling = set[R]()
        heartbeat = asyncio.create_task(self._beat(source, handling))
        try:
            await self._consume(source, handling)
            await self._end(self._drain_s)
        finally:
            heartbeat.cancel()
            try:
                async with asyncio.timeout(CALL_S):
                    await source.close()
            except self.failures:
                logger.debug("%s: closing failed", self._name, exc_info=True)

    async def _consume(self, source: Source[R], handling: set[R]) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            if (pause_s := self._paused_until_s - loop.time()) > 0:
                await self.hold(round(pause_s * 1000) + 1)
            elif (free := self.concurrency - len(self._tasks)) > 0:
                for received in await source.take(free):
                    handling.add(received)
                    task = asyncio.create_task(self._handle(received, handling))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            else:
                await self._wait_for_one()

    async def _wait_for_one(self) -> None:
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((stop, *self._tasks), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    async def _handle(self, received: R, handling: set[R]) -> None:
        try:
            verdict = await self._consumer(received.delivery)
            try:
                await self._settle(received, verdict)
            except self.failures as error:
                # The broker still has the delivery. Its repeat is a duplicate, or comes to the same verdict.
                logger.warning("%s: could not %s (%r)", self._name, verdict.settling.value, error)
        except Exception:
            logger.exception("%s: a delivery failed outside of its handler", self._name)
        finally:
            handling.discard(received)

    async def _settle(self, received: R, verdict: Verdict) -> None:
        match verdict.settling:
            case Settling.ACKNOWLEDGE:
                await received.acknowledge()
            case Settling.DELIVER_AGAIN:
                await received.deliver_again(verdict.delay_ms)
            case Settling.STOP:
                until_s = asyncio.get_running_loop().time() + verdict.delay_ms / 1000
                self._paused_until_s = max(self._paused_until_s, until_s)
                await received.deliver_again(verdict.delay_ms)
            case Settling.DEAD_LETTER | Settling.PARK:
                try:
                    await received.bury(verdict)
                except self.failures as error:
                    logger.error("%s: the broker did not take a dead letter (%r)", self._name, error)
                    await received.deliver_again(UNSETTLED_MS)

    async def _beat(self, source: Source[R], handling: set[R]) -> None:
        while source.heartbeat_s is not None:
            await asyncio.sleep(source.heartbeat_s)
            if handling:
                try:
                    await source.keep(tuple(handling))
                except self.failures:
                    logger.debug("%s: a heartbeat failed", self._name, exc_info=True)

    async def _end(self, within_s: float) -> None:
        """Let begun work end, then cancel it: the broker delivers it again."""
        if self._tasks and within_s:
            await asyncio.wait(self._tasks, timeout=within_s)
        cut = list(self._tasks)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut)
            logger.warning("%s: cut off %d deliveries; the broker delivers them again", self._name, len(cut))

    @property
    def _name(self) -> str:
        return f"{type(self).__name__} of {self._consumer.handler}"


def milliseconds(field: str, duration: Duration) -> int:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    return check_duration(field, round(seconds * 1000))


def needs_dead_letter(kind: str, example: str) -> BrokerMisconfigured:
    return BrokerMisconfigured(f"{kind} needs a place for messages that cannot be handled: write dead_letter={example}")


def reason_headers(verdict: Verdict) -> dict[str, str]:
    """Why a message is a dead letter, as headers that every broker can carry: ASCII, in one line."""
    reason = " ".join(verdict.reason.encode("ascii", "backslashreplace").decode().split())[:REASON_MAX]
    return {
        "semel-reason": reason,
        "semel-handling": verdict.handling.name,
        "semel-attempt": str(verdict.attempt),
    }


def _checked_concurrency(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= CONCURRENCY_MAX:
        raise ValueError(f"concurrency must be a number from 1 to {CONCURRENCY_MAX}, not {value!r}")
    return value
