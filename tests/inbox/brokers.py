"""What the tests of the adapters do with a real broker, the same for each."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aio_pika
import nats
from nats.js.api import ConsumerConfig
from redis.asyncio import Redis

from semel.inbox.nats import NatsConsumer
from semel.inbox.rabbitmq import RabbitmqConsumer
from semel.inbox.redis import RedisConsumer
from semel.inbox.worker import BrokerConsumer, DeliveryConsumer


@dataclass(frozen=True)
class Dead:
    """A dead letter as it arrived."""

    id: str | None
    payload: bytes
    headers: Mapping[str, str]


class Broker(ABC):
    """One source of messages with its dead letters, under names of its own."""

    lease_s: float | None = None
    """How long the broker waits for a consumer that says nothing, where it goes by that."""
    invents_ids = False
    """Whether the client library gives an id to every message that is published without one."""

    def __init__(self, url: str, name: str = "") -> None:
        self.url = url
        self.name = name or f"t{uuid.uuid4().hex[:12]}"

    @abstractmethod
    async def prepare(self) -> None:
        """Declare what the deployment would."""

    @abstractmethod
    def worker(self, consumer: DeliveryConsumer, **options: Any) -> BrokerConsumer[Any]: ...

    @abstractmethod
    async def publish(self, message_id: str | None, payload: bytes = b"{}", **headers: str) -> None: ...

    @abstractmethod
    async def left(self) -> int:
        """How many messages the broker still owes, once no worker runs."""

    async def is_done(self) -> bool:
        return await self.left() == 0

    @abstractmethod
    async def dead(self) -> list[Dead]: ...

    @abstractmethod
    async def spoil(self) -> None:
        """From now on the broker takes no dead letter."""


class OnRedis(Broker):
    lease_s = 1.2

    async def prepare(self) -> None:
        pass

    def worker(self, consumer: DeliveryConsumer, **options: Any) -> RedisConsumer:
        options = {"dead_letter": f"{self.name}.dead", "visibility": self.lease_s, **options}
        return RedisConsumer(self.url, self.name, consumer, **options)

    async def publish(self, message_id: str | None, payload: bytes = b"{}", **headers: str) -> None:
        named = {} if message_id is None else {"semel-id": message_id}
        fields: dict[Any, Any] = {**named, **headers, "payload": payload, "content-type": "application/json"}
        async with Redis.from_url(self.url) as client:
            await client.xadd(self.name, fields)

    async def left(self) -> int:
        async with Redis.from_url(self.url, decode_responses=True) as client:
            (group,) = await client.xinfo_groups(self.name)
            return int(group["pending"]) + int(group["lag"])

    async def dead(self) -> list[Dead]:
        async with Redis.from_url(self.url) as client:
            entries: Any = await client.xrange(f"{self.name}.dead")
        found = list[Dead]()
        for _, fields in entries:
            payload = fields.pop(b"payload")
            headers = {name.decode(): value.decode() for name, value in fields.items()}
            found.append(Dead(headers.get("semel-id"), payload, headers))
        return found

    async def spoil(self) -> None:
        async with Redis.from_url(self.url) as client:
            await client.set(f"{self.name}.dead", "not a stream")


class OnRabbitmq(Broker):
    invents_ids = True

    async def prepare(self) -> None:
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(self.name, durable=True)
            await channel.declare_queue(f"{self.name}.dead", durable=True)

    def worker(self, consumer: DeliveryConsumer, **options: Any) -> RabbitmqConsumer:
        return RabbitmqConsumer(self.url, self.name, consumer, **{"dead_letter": f"{self.name}.dead", **options})

    async def publish(self, message_id: str | None, payload: bytes = b"{}", **headers: str) -> None:
        message = aio_pika.Message(
            payload,
            message_id=message_id,
            content_type="application/json",
            headers=dict(headers),
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            await channel.default_exchange.publish(message, self.name)

    async def left(self) -> int:
        async with await aio_pika.connect(self.url) as connection:
            queue = await (await connection.channel()).declare_queue(self.name, passive=True)
            return queue.declaration_result.message_count or 0

    async def dead(self) -> list[Dead]:
        found = list[Dead]()
        async with await aio_pika.connect(self.url) as connection:
            queue = await (await connection.channel()).get_queue(f"{self.name}.dead")
            while (message := await queue.get(fail=False)) is not None:
                headers = {name: str(value) for name, value in message.headers.items()}
                found.append(Dead(message.message_id, message.body, headers))
        return found  # not acknowledged: they are there again

    async def spoil(self) -> None:
        async with await aio_pika.connect(self.url) as connection:
            await (await connection.channel()).queue_delete(f"{self.name}.dead")


class OnNats(Broker):
    lease_s = 1.2

    async def prepare(self) -> None:
        client = await nats.connect(self.url)
        streams = client.jetstream()
        await streams.add_stream(name=self.name, subjects=[f"{self.name}.>"])
        await streams.add_stream(name=f"{self.name}_dead", subjects=[f"dead.{self.name}"])
        await client.close()

    def worker(self, consumer: DeliveryConsumer, **options: Any) -> NatsConsumer:
        options = {"dead_letter": f"dead.{self.name}", "ack_wait": self.lease_s, **options}
        return NatsConsumer(self.url, self.name, consumer, **options)

    async def configure(self, config: ConsumerConfig) -> None:
        client = await nats.connect(self.url)
        await client.jetstream().add_consumer(self.name, config)
        await client.close()

    async def publish(self, message_id: str | None, payload: bytes = b"{}", **headers: str) -> None:
        named = {} if message_id is None else {"semel-id": message_id}
        client = await nats.connect(self.url)
        all_headers: dict[str, Any] = {**named, **headers, "content-type": "application/json"}
        await client.jetstream().publish(f"{self.name}.created", payload, headers=all_headers)
        await client.close()

    async def left(self) -> int:
        client = await nats.connect(self.url)
        info = await client.jetstream().consumer_info(self.name, "tests_adapter")
        await client.close()
        return (info.num_pending or 0) + (info.num_ack_pending or 0)

    async def dead(self) -> list[Dead]:
        client = await nats.connect(self.url)
        streams = client.jetstream()
        found = list[Dead]()
        for sequence in range(1, (await streams.stream_info(f"{self.name}_dead")).state.last_seq + 1):
            message = await streams.get_msg(f"{self.name}_dead", sequence)
            headers = message.headers or {}
            found.append(Dead(headers.get("semel-id"), message.data or b"", headers))
        await client.close()
        return found

    async def spoil(self) -> None:
        client = await nats.connect(self.url)
        await client.jetstream().delete_stream(f"{self.name}_dead")
        await client.close()
