"""Consumes a queue of RabbitMQ by aio-pika."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, Unpack

import aio_pika
from aio_pika import exceptions
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage, HeadersType

from semel.core.messages import Delivery
from semel.core.verdicts import Verdict
from semel.errors import BrokerMisconfigured
from semel.inbox.worker import (
    CALL_S,
    MISSING,
    POLL_S,
    BrokerConsumer,
    DeliveryConsumer,
    WorkerOptions,
    needs_dead_letter,
    reason_headers,
)

__all__ = ["DeadLetterExchange", "RabbitmqConsumer"]

T = TypeVar("T")
Connect = Callable[[], Awaitable[AbstractConnection]]
ROUTING_HEADERS = frozenset(("CC", "BCC"))
"""Headers by which RabbitMQ sends a message to further queues: a dead letter is not to be sent there again."""


@dataclass(frozen=True)
class DeadLetterExchange:
    """Dead letters go to this exchange; by default with the routing key that the message came with."""

    name: str
    routing_key: str | None = None


class RabbitmqConsumer(BrokerConsumer["RabbitmqDelivery"]):
    """Handles the messages of a queue. The queue belongs to your deployment: it is never declared here.

    - A message is acknowledged after its record is stored, by itself. The prefetch is `concurrency`: RabbitMQ sends
      no more than are handled at once.
    - RabbitMQ cannot deliver a message again after a delay. So the message stays unacknowledged for its delay, counts
      among the `concurrency` meanwhile, and then goes back into the queue. A quorum queue counts that towards its
      `x-delivery-limit`: set it to `-1`, or give the queue a dead-letter exchange, or RabbitMQ drops the message.
    - A dead letter goes to `dead_letter`: a queue's name, or a `DeadLetterExchange`. It has the headers
      `semel-reason`, `semel-handling` and `semel-attempt`. The message is acknowledged after RabbitMQ confirmed that a
      queue has the dead letter.
    - `dead_letter=None` rejects the message instead, and the queue's own dead-letter exchange takes it, without the
      reason. RabbitMQ drops the message if the queue has no such exchange, and does not tell.
    - RabbitMQ closes the channel of a consumer that keeps a message longer than `consumer_timeout` (30 minutes).

    The message's id is the property `message_id`. `connection` is a URL (`amqp://`, `amqps://`), or a function that
    returns a connection of aio-pika, for options of yours: `lambda: aio_pika.connect(…)`. It is called again after
    the connection was lost, so it needs no `connect_robust`.
    """

    failures = (exceptions.AMQPError, exceptions.ChannelInvalidStateError, OSError)

    def __init__(
        self,
        connection: str | Connect,
        queue: str,
        consumer: DeliveryConsumer,
        *,
        dead_letter: str | DeadLetterExchange | object | None = MISSING,
        **options: Unpack[WorkerOptions],
    ) -> None:
        super().__init__(consumer, options)
        if isinstance(dead_letter, str) and dead_letter:
            place: DeadLetterExchange | None = DeadLetterExchange("", dead_letter)
        elif dead_letter is None or isinstance(dead_letter, DeadLetterExchange):
            place = dead_letter
        else:
            error = needs_dead_letter("RabbitmqConsumer", f'"{queue}.dead", the name of a queue')
            error.add_note("dead_letter=None leaves it to the dead-letter exchange of the queue, if there is one")
            raise error
        if place == DeadLetterExchange("", queue):
            raise BrokerMisconfigured(
                f'dead letters in {queue!r} itself would be consumed again: write dead_letter="{queue}.dead"'
            )
        self._connection, self._queue, self._dead_letter = connection, queue, place

    async def _open(self) -> RabbitmqSource:
        connection = await self._connect()
        try:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            await channel.set_qos(prefetch_count=self.concurrency)
            source = RabbitmqSource(connection, channel, await self._find_grave(channel), self.hold)
            await source.consume(await self._find("queue", channel.get_queue(self._queue, ensure=True), self._queue))
        except BaseException:
            await connection.close()
            raise
        return source

    async def _connect(self) -> AbstractConnection:
        try:
            if not isinstance(self._connection, str):
                return await self._connection()
            return await aio_pika.connect(self._connection)
        except (exceptions.ProbableAuthenticationError, exceptions.AuthenticationError) as error:
            raise BrokerMisconfigured(f"RabbitMQ refuses the login: check user and password: {error}") from error

    async def _find_grave(self, channel: AbstractChannel) -> Grave | None:
        """Where dead letters go. It is looked for at the start: later its absence would hold up every dead letter."""
        if (place := self._dead_letter) is None:
            return None
        if not place.name:
            key = place.routing_key or ""
            await self._find("queue", channel.get_queue(key, ensure=True), key)
            return Grave(channel.default_exchange, key)
        exchange = await self._find("exchange", channel.get_exchange(place.name, ensure=True), place.name)
        return Grave(exchange, place.routing_key)

    async def _find(self, kind: str, looking: Awaitable[T], name: str) -> T:
        try:
            return await looking
        except exceptions.ChannelNotFoundEntity as error:
            raise BrokerMisconfigured(f"RabbitMQ has no {kind} {name!r}: declare it, durable: {error}") from error


@dataclass(frozen=True)
class Grave:
    """Where dead letters are published."""

    exchange: AbstractExchange
    routing_key: str | None


class RabbitmqSource:
    """One channel that a queue sends messages to."""

    heartbeat_s: float | None = None

    def __init__(
        self,
        connection: AbstractConnection,
        channel: AbstractChannel,
        grave: Grave | None,
        hold: Callable[[int], Awaitable[None]],
    ) -> None:
        self.grave, self.hold = grave, hold
        self.burying = asyncio.Lock()  # aio-pika finds a returned message by its id, which two dead letters may share
        self._connection, self._channel = connection, channel
        self._arrived = asyncio.Queue[AbstractIncomingMessage | None]()

    async def consume(self, queue: aio_pika.abc.AbstractQueue) -> None:
        self._channel.close_callbacks.add(lambda *_: self._arrived.put_nowait(None))
        underlay = await self._channel.get_underlay_channel()
        cancelled: set[Callable[..., object]] = getattr(underlay, "on_consumer_cancel_callbacks", set())  # aiormq >= 7
        cancelled.add(lambda *_: self._arrived.put_nowait(None))
        await queue.consume(self._arrived.put)

    async def take(self, most: int) -> Sequence[RabbitmqDelivery]:
        try:
            message = await asyncio.wait_for(self._arrived.get(), POLL_S)
        except TimeoutError:
            return ()
        if message is None:
            raise ConnectionError("RabbitMQ has ended the consumer")
        return (RabbitmqDelivery(self, message),)

    async def keep(self, handling: Sequence[RabbitmqDelivery]) -> None:
        """RabbitMQ waits for the acknowledgement as long as the connection lives."""

    async def close(self) -> None:
        await self._connection.close()


class RabbitmqDelivery:
    """One message that RabbitMQ waits for the acknowledgement of."""

    def __init__(self, source: RabbitmqSource, message: AbstractIncomingMessage) -> None:
        self._source, self._message = source, message
        self.delivery = Delivery(
            message.body,
            id=message.message_id,
            topic=message.routing_key or "",
            content_type=message.content_type or "",
            headers=_texts(message.headers),
            raw=message,
        )

    async def acknowledge(self) -> None:
        await self._message.ack()

    async def deliver_again(self, delay_ms: int) -> None:
        await self._source.hold(delay_ms)
        await self._message.nack(requeue=True)

    async def bury(self, verdict: Verdict) -> None:
        if (grave := self._source.grave) is None:
            await self._message.reject(requeue=False)
            return
        key = grave.routing_key if grave.routing_key is not None else self._message.routing_key or ""
        async with self._source.burying:
            await grave.exchange.publish(_dead(self._message, verdict), key, mandatory=True, timeout=CALL_S)
        await self._message.ack()


def _dead(message: AbstractIncomingMessage, verdict: Verdict) -> aio_pika.Message:
    kept = {name: value for name, value in message.headers.items() if name not in ROUTING_HEADERS}
    return aio_pika.Message(
        message.body,
        headers={**kept, **reason_headers(verdict)},
        message_id=message.message_id,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        timestamp=message.timestamp,
        type=message.type,
        app_id=message.app_id,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )


def _texts(headers: HeadersType) -> dict[str, str]:
    """The headers that are text or numbers. Tables and lists, such as `x-death`, are in `Delivery.raw`."""
    found = dict[str, str]()
    for name, value in headers.items():
        match value:
            case bytes():
                found[name] = value.decode(errors="replace")
            case str() | int() | float():
                found[name] = str(value)
            case _:
                pass
    return found
