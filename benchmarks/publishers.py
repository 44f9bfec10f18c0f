"""Messages published per second, 100 at a time, beside the client library's own publish-with-confirm."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import aio_pika
import aiohttp
import nats
import redis.asyncio
import uvloop
from nats.js.api import StorageType

from benchmarks.apps import SEMEL
from benchmarks.places import Places
from benchmarks.results import PER_SECOND, Found, Note
from benchmarks.rounds import aalternate, measured
from benchmarks.sizes import Size
from semel.outbox import Message, open_publisher
from servers.binaries import MissingServer
from servers.nats import NatsServer
from servers.process import free_port
from servers.rabbitmq import RabbitmqServer

AT_ONCE = 100
TOPIC, PAYLOAD, TYPE = "bench", b"x" * 256, "application/json"
LIBRARY, PIPELINE = "the library, one by one", "the library, pipelines by hand"
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
numbers = itertools.count()
Publish = Callable[[str], Awaitable[object]]
Many = Callable[[list[str]], Awaitable[object]]
Contenders = dict[str, Many]


def measure(size: Size, places: Places) -> Iterator[Found]:
    """Kafka is not here: there is no server. Nor are SQS and SNS: moto, which stands for them, is the slow one."""
    ways: dict[str, Callable[[Places], AbstractAsyncContextManager[Contenders]]] = {
        "RabbitMQ": rabbitmq,
        "NATS JetStream": jetstream,
        "Redis": redis_streams,
        "webhook": webhook,
    }
    for broker, open_contenders in ways.items():
        try:
            yield from uvloop.run(at(broker, open_contenders(places), size))
        except MissingServer as error:
            yield Note(f"publishing to {broker}", str(error))


async def at(broker: str, opening: AbstractAsyncContextManager[Contenders], size: Size) -> list[Found]:
    async with opening as contenders:
        runs = {who: partial(per_second, many, size.round_s) for who, many in contenders.items()}
        rounds = await aalternate(runs, size.rounds)
    return [measured("publish", who, broker, AT_ONCE, PER_SECOND, values) for who, values in rounds.items()]


async def per_second(many: Many, seconds: float) -> float:
    done, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        await many([f"{os.getpid()}-{next(numbers)}" for _ in range(AT_ONCE)])
        done += AT_ONCE
    return done / (time.perf_counter() - started)


def gathered(publish: Publish) -> Many:
    async def many(ids: list[str]) -> None:
        await asyncio.gather(*map(publish, ids))

    return many


@asynccontextmanager
async def ours(url: str) -> AsyncIterator[Many]:
    publisher = open_publisher(url)

    async def publish(message_id: str) -> None:
        await publisher.publish(Message(message_id, TOPIC, PAYLOAD, TYPE, key="k"))

    yield gathered(publish)
    await publisher.close()


@asynccontextmanager
async def rabbitmq(places: Places) -> AsyncIterator[Contenders]:
    with RabbitmqServer() as server:
        async with await aio_pika.connect(server.url) as connection, ours(server.url) as semel:
            channel = await connection.channel(publisher_confirms=True)
            await channel.declare_queue(TOPIC, durable=True, arguments={"x-max-length": 10_000})

            async def publish(message_id: str) -> None:
                headers: dict[str, aio_pika.abc.FieldValue] = {"semel-id": message_id, "semel-key": "k"}
                lasting = aio_pika.Message(
                    PAYLOAD, message_id=message_id, headers=headers, content_type=TYPE, delivery_mode=2
                )
                await channel.default_exchange.publish(lasting, TOPIC, mandatory=True)

            yield {SEMEL: semel, LIBRARY: gathered(publish)}


@asynccontextmanager
async def jetstream(places: Places) -> AsyncIterator[Contenders]:
    with NatsServer() as server:
        client = await nats.connect(server.url)
        streams = client.jetstream()
        await streams.add_stream(name="BENCH", subjects=[TOPIC], storage=StorageType.FILE, max_msgs=10_000)

        async def publish(message_id: str) -> None:
            headers = {"Nats-Msg-Id": message_id, "semel-id": message_id, "semel-key": "k", "content-type": TYPE}
            await streams.publish(TOPIC, PAYLOAD, headers=headers)

        async with ours(server.url) as semel:
            yield {SEMEL: semel, LIBRARY: gathered(publish)}
        await client.close()


@asynccontextmanager
async def redis_streams(places: Places) -> AsyncIterator[Contenders]:
    client = redis.asyncio.Redis.from_url(places.redis_url)

    def fields(message_id: str) -> dict[str, bytes | str]:
        return {"payload": PAYLOAD, "semel-id": message_id, "semel-key": "k", "content-type": TYPE}

    async def publish(message_id: str) -> None:
        await client.xadd(TOPIC, fields(message_id), maxlen=10_000)  # type: ignore[arg-type]

    async def pipelined(ids: list[str]) -> None:
        pipeline = client.pipeline(transaction=False)
        for message_id in ids:
            pipeline.xadd(TOPIC, fields(message_id), maxlen=10_000)  # type: ignore[arg-type]
        await pipeline.execute()

    async with ours(f"{places.redis_url}?maxlen=10000") as semel:
        yield {SEMEL: semel, LIBRARY: gathered(publish), PIPELINE: pipelined}
    await client.aclose()


@asynccontextmanager
async def webhook(places: Places) -> AsyncIterator[Contenders]:
    """The receiver is in the same process, and does no more than find the end of a request."""
    port = free_port()
    receiver = await asyncio.start_server(answer, "127.0.0.1", port)
    url = f"http://127.0.0.1:{port}/hooks"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=32)) as session, ours(url) as semel:

        async def publish(message_id: str) -> None:
            headers = {"Idempotency-Key": message_id, "webhook-id": message_id, "semel-key": "k", "content-type": TYPE}
            async with session.post(url, data=PAYLOAD, headers=headers) as response:
                assert response.status == 204

        yield {SEMEL: semel, LIBRARY: gathered(publish)}
    receiver.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not reader.at_eof():
        try:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(PAYLOAD))
        except (asyncio.IncompleteReadError, ConnectionError):
            break
        writer.write(ANSWER)
    writer.close()
