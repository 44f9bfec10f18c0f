"""A relay beside the broker's own publish with confirm, from the same process, and a backlog that several drain."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing

import aio_pika
import nats
import psycopg
import uvloop
from nats.js.api import StreamConfig

from benchmarks.apps import SEMEL
from benchmarks.growth import place_for
from benchmarks.places import Places
from benchmarks.results import PER_SECOND, Found
from benchmarks.rounds import measured
from benchmarks.sizes import Size
from semel import open_async_store, open_store
from semel.core.outbox import CountMessages
from semel.outbox import Message, Publisher, Relay, open_publisher
from semel.store import AsyncMigratable, Migratable, Outboxed
from semel.transaction import within
from servers.nats import NatsServer
from servers.rabbitmq import RabbitmqServer

TOPIC, PAYLOAD = "orders", b"x" * 200
AT_ONCE = 100
MESSAGES, ROUNDS = 3_000, 5
BACKLOG = 6_000
RELAYS = (1, 2, 4)
KINDS = {"unkeyed": (False, 100), "100 keys": (True, 100), "100 keys, batch=500": (True, 500)}
"""Whether the messages have keys, and how many are taken at a time."""
CEILING = "publish with confirm"


def measure(size: Size, places: Places) -> Iterator[Found]:
    with RabbitmqServer() as rabbitmq, NatsServer() as nats_server:
        for name, url in (("rabbitmq", rabbitmq.url), ("nats", nats_server.url)):
            yield from uvloop.run(beside_ceiling(name, url, place_for("postgres", places)))
        yield from drain(rabbitmq.url, place_for("postgres", places))


@asynccontextmanager
async def topic_of(name: str, url: str) -> AsyncIterator[None]:
    """The queue or stream that takes the messages."""
    if name == "rabbitmq":
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(TOPIC, durable=True)
            yield
            await channel.queue_delete(TOPIC)
    else:
        client = await nats.connect(url)
        try:
            await client.jetstream().add_stream(StreamConfig(name=TOPIC, subjects=[TOPIC]))
            yield
        finally:
            await client.close()


async def beside_ceiling(name: str, url: str, store_url: str) -> list[Found]:
    store = open_async_store(store_url)
    assert isinstance(store, AsyncMigratable)
    await store.migrate()
    ceiling: list[float] = []
    relayed: dict[str, list[float]] = {kind: [] for kind in KINDS}
    async with topic_of(name, url):
        publisher = open_publisher(url)
        await publish_all(publisher, 0, AT_ONCE)  # connect, and warm up
        for number in range(1, ROUNDS + 1):  # alternating, since the machine changes meanwhile
            ceiling.append(await publish_all(publisher, number, MESSAGES))
            for kind, found in relayed.items():
                await asyncio.to_thread(fill, store_url, f"{kind}{name}{number}", MESSAGES, KINDS[kind][0])
                relay = Relay(store, publisher, concurrency=AT_ONCE, batch=KINDS[kind][1])  # type: ignore[arg-type]
                began = time.perf_counter()
                assert await relay.publish_waiting() == MESSAGES
                found.append(MESSAGES / (time.perf_counter() - began))
        await publisher.close()
    await store.close()
    return [
        measured(CEILING, name, "postgres", AT_ONCE, PER_SECOND, ceiling),
        *(measured(f"relay, {kind}", SEMEL, name, AT_ONCE, PER_SECOND, found) for kind, found in relayed.items()),
    ]


async def publish_all(publisher: Publisher, number: int, count: int) -> float:
    """How many messages a second the broker confirms to `AT_ONCE` tasks."""
    left = iter(range(count))

    async def publish() -> None:
        for each in left:
            await publisher.publish(Message(f"c{number}-{each}", TOPIC, PAYLOAD))

    began = time.perf_counter()
    await asyncio.gather(*(publish() for _ in range(AT_ONCE)))
    return count / (time.perf_counter() - began)


def fill(store_url: str, name: str, count: int, keyed: bool) -> None:
    with closing(psycopg.connect(store_url.partition("?")[0])) as connection:
        tx = within(connection)
        for number in range(count):
            key = f"key-{number % 100}" if keyed else None
            tx.publish(TOPIC, PAYLOAD, key=key, id=f"{name}-{number}".replace(" ", ""))
        connection.commit()


def drain(broker_url: str, store_url: str) -> Iterator[Found]:
    """A backlog published by several processes: from the first message that is gone to the last."""
    store = open_store(store_url)
    assert isinstance(store, Outboxed)
    assert isinstance(store, Migratable)
    store.migrate()
    loop = asyncio.new_event_loop()
    topic = topic_of("rabbitmq", broker_url)
    loop.run_until_complete(topic.__aenter__())
    for relays in RELAYS:
        fill(store_url, f"d{relays}", BACKLOG, keyed=True)
        words = [sys.executable, "-m", "semel", "relay", store_url, "--to", broker_url, "--log-level", "error"]
        running = [subprocess.Popen(words) for _ in range(relays)]
        try:
            while store.outbox(CountMessages()).waiting == BACKLOG:
                time.sleep(0.005)
            began = time.perf_counter()
            while store.outbox(CountMessages()).waiting:
                time.sleep(0.005)
            spent = time.perf_counter() - began
        finally:
            for each in running:
                each.terminate()
            for each in running:
                each.wait(30)
        yield measured("drain", f"{relays} relays", "rabbitmq", relays, PER_SECOND, [BACKLOG / spent])
    loop.run_until_complete(topic.__aexit__(None, None, None))
    loop.close()
    store.close()
