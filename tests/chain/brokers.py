"""The brokers that a chain can go through, for the processes and for the judge."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Protocol

from chain.judge import Published
from chain.setting import ARMS, AUDIT, DEAD, DIRECT, TOPIC, Setting
from semel.inbox import AsyncConsumer

EXCHANGE = "chain"


class Worker(Protocol):
    async def run(self) -> None: ...
    def stop(self) -> None: ...


class Broker(ABC):
    """`has_controls`: whether the control arms run on it, too. `drops_repeats`: whether it notices a repeated id."""

    has_controls = False
    drops_repeats = False

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    @abstractmethod
    def publisher_url(self) -> str: ...

    @abstractmethod
    def consumer(self, queue: str, consumer: AsyncConsumer, **options: Any) -> Worker:
        """semel's consumer for this broker."""

    @abstractmethod
    async def prepare(self) -> None:
        """Make queues and streams, before the first message."""

    @abstractmethod
    async def count(self, queue: str) -> int:
        """How many messages have not been handled."""

    @abstractmethod
    async def read(self, queue: str) -> Published:
        """All messages of AUDIT or DIRECT, in their order."""


class RabbitBroker(Broker):
    has_controls = True

    @property
    def publisher_url(self) -> str:
        return f"{self.url}?exchange={EXCHANGE}"

    def consumer(self, queue: str, consumer: AsyncConsumer, **options: Any) -> Worker:
        from semel.inbox.rabbitmq import RabbitmqConsumer

        return RabbitmqConsumer(self.url, queue, consumer, **options)

    async def prepare(self) -> None:
        import aio_pika

        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)
            for name in (*map(queue_of, ARMS), AUDIT):
                await (await channel.declare_queue(name, durable=True)).bind(exchange, TOPIC)
            await (await channel.declare_queue(DIRECT, durable=True)).bind(exchange, DIRECT)
            await channel.declare_queue(DEAD, durable=True)

    async def count(self, queue: str) -> int:
        """Of the messages that lie in the queue. Those under way to a consumer do not count."""
        import aio_pika

        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            declared = await channel.declare_queue(queue, durable=True, passive=True)
            return declared.declaration_result.message_count or 0

    async def read(self, queue: str) -> Published:
        import aio_pika

        found: Published = []
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            source = await channel.declare_queue(queue, durable=True, passive=True)
            while (message := await source.get(no_ack=True, fail=False)) is not None:
                found.append((message.message_id or "", json.loads(message.body)))
        return found


class NatsBroker(Broker):
    """One stream for each topic. JetStream drops what is published again within two minutes."""

    drops_repeats = True
    streams: ClassVar[Mapping[str, str]] = {TOPIC: "ORDERS", DIRECT: "DIRECT", DEAD: "DEAD"}

    @property
    def publisher_url(self) -> str:
        return self.url

    def consumer(self, queue: str, consumer: AsyncConsumer, **options: Any) -> Worker:
        from semel.inbox.nats import NatsConsumer

        return NatsConsumer(self.url, self.streams[TOPIC], consumer, ack_wait=5, **options)

    async def prepare(self) -> None:
        async with self._client() as client:
            for subject, stream in self.streams.items():
                await client.jetstream().add_stream(name=stream, subjects=[subject])

    async def count(self, queue: str) -> int:
        import nats.js.errors

        async with self._client() as client:
            streams = client.jetstream()
            if queue == DEAD:
                return int((await streams.stream_info(self.streams[DEAD])).state.messages)
            try:
                found = await streams.consumer_info(self.streams[TOPIC], "ledger")
            except nats.js.errors.NotFoundError:
                return int((await streams.stream_info(self.streams[TOPIC])).state.messages)
            return (found.num_pending or 0) + (found.num_ack_pending or 0)

    async def read(self, queue: str) -> Published:
        stream = self.streams[TOPIC if queue == AUDIT else queue]
        async with self._client() as client:
            streams = client.jetstream()
            last = (await streams.stream_info(stream)).state.last_seq
            messages = [await streams.get_msg(stream, sequence) for sequence in range(1, last + 1)]
        return [((each.headers or {}).get("semel-id", ""), json.loads(each.data or b"")) for each in messages]

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        import nats

        client = await nats.connect(self.url)
        try:
            yield client
        finally:
            await client.close()


class RedisBroker(Broker):
    """One stream for each topic, and a group for the ledger."""

    @property
    def publisher_url(self) -> str:
        return self.url

    def consumer(self, queue: str, consumer: AsyncConsumer, **options: Any) -> Worker:
        from semel.inbox.redis import RedisConsumer

        return RedisConsumer(self.url, TOPIC, consumer, visibility=5, **options)

    async def prepare(self) -> None:
        """A group and its stream are made by the first consumer."""

    async def count(self, queue: str) -> int:
        async with self._client() as client:
            if queue == DEAD:
                return int(await client.xlen(DEAD))
            [group] = await client.xinfo_groups(TOPIC)
            return int(group["lag"] or 0) + int(group["pending"])

    async def read(self, queue: str) -> Published:
        async with self._client() as client:
            entries = await client.xrange(TOPIC if queue == AUDIT else queue)
        return [(fields[b"semel-id"].decode(), json.loads(fields[b"payload"])) for _, fields in entries]

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        import redis.asyncio

        client = redis.asyncio.from_url(self.url)
        try:
            yield client
        finally:
            await client.aclose()


def queue_of(arm: str) -> str:
    return f"ledger.{arm}"


def broker_of(setting: Setting) -> Broker:
    return BROKERS[setting.broker](setting.broker_url)


BROKERS: dict[str, type[Broker]] = {"rabbitmq": RabbitBroker, "nats": NatsBroker, "redis": RedisBroker}
