"""The inbox around subscribers of FastStream, on real brokers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker
from faststream.rabbit import RabbitBroker, RabbitQueue
from faststream.redis import RedisBroker, StreamSub

import semel
from inbox.adapters import until
from semel.core.verdicts import Verdict
from semel.errors import BrokerMisconfigured
from semel.faststream import protect
from semel.inbox import Delivery
from servers.nats import Nats
from servers.rabbitmq import Rabbitmq


class Stage:
    """A broker with one protected subscriber, and what it did."""

    def __init__(self, broker: Any, publish: Callable[[str], Any]) -> None:
        self.broker, self.publish = broker, publish
        self.calls: list[str] = []
        self.buried: list[tuple[str | None, str]] = []
        self.failures: list[Exception] = []

    async def handle(self, body: str) -> None:
        self.calls.append(body)
        if self.failures:
            raise self.failures.pop(0)

    async def bury(self, delivery: Delivery, verdict: Verdict) -> None:
        self.buried.append((delivery.id, verdict.handling.name))

    def protect(self, folder: Path, **options: Any) -> None:
        store = semel.open_async_store(f"sqlite:///{folder}/semel.db")
        policy = semel.Policy(guarantee="at-least-once")
        options = {"dead_letter": self.bury, "policy": policy, "final_errors": [KeyError], **options}
        protect(self.broker, "tests", store=store, **options)


@asynccontextmanager
async def on_rabbitmq(url: str, name: str, folder: Path) -> AsyncIterator[Stage]:
    broker = RabbitBroker(url)

    async def publish(message_id: str) -> None:
        await broker.publish(f"body of {message_id}", name, message_id=message_id)

    stage = Stage(broker, publish)
    broker.subscriber(RabbitQueue(name, durable=True), ack_policy=AckPolicy.NACK_ON_ERROR)(stage.handle)
    stage.protect(folder)
    async with broker:
        await broker.start()
        yield stage


@asynccontextmanager
async def on_nats(url: str, name: str, folder: Path) -> AsyncIterator[Stage]:
    broker = NatsBroker(url)

    async def publish(message_id: str) -> None:
        await broker.publish(f"body of {message_id}", f"{name}.new", headers={"semel-id": message_id}, stream=name)

    stage = Stage(broker, publish)
    stream = JStream(name, subjects=[f"{name}.>"])
    options: dict[str, Any] = {"stream": stream, "durable": name, "pull_sub": True}
    broker.subscriber(f"{name}.new", ack_policy=AckPolicy.MANUAL, **options)(stage.handle)
    stage.protect(folder)
    async with broker:
        await broker.start()
        yield stage


@asynccontextmanager
async def on_redis(url: str, name: str, folder: Path) -> AsyncIterator[Stage]:
    broker = RedisBroker(url)
    async with redis.asyncio.Redis.from_url(url) as client:
        await client.xgroup_create(name, "group", id="0", mkstream=True)

    async def publish(message_id: str) -> None:
        await broker.publish(f"body of {message_id}", stream=name, headers={"semel-id": message_id})

    stage = Stage(broker, publish)
    new = StreamSub(name, group="group", consumer="one")
    again = StreamSub(name, group="group", consumer="two", min_idle_time=300)
    handler = broker.subscriber(stream=new, ack_policy=AckPolicy.NACK_ON_ERROR)(stage.handle)
    broker.subscriber(stream=again, ack_policy=AckPolicy.NACK_ON_ERROR)(handler)
    stage.protect(folder)
    async with broker:
        await broker.start()
        yield stage


@pytest.fixture(params=["rabbitmq", "nats", "redis"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    name = f"t{uuid.uuid4().hex[:12]}"
    match request.param:
        case "rabbitmq":
            rabbit: Rabbitmq = request.getfixturevalue("rabbitmq_server")
            return lambda: on_rabbitmq(rabbit.url, name, tmp_path)
        case "nats":
            jet: Nats = request.getfixturevalue("nats_server")
            return lambda: on_nats(jet.url, name, tmp_path)
        case _:
            url: str = request.getfixturevalue("redis_url")
            return lambda: on_redis(url, name, tmp_path)


def test_what_is_delivered_twice_is_handled_once(stage: Callable[[], Any]) -> None:
    async def scenario() -> None:
        async with stage() as scene:
            for message in ("m1", "m2", "m1", "m2", "m1", "m3"):
                await scene.publish(message)
            await until(lambda: "body of m3" in scene.calls)
        assert sorted(scene.calls) == ["body of m1", "body of m2", "body of m3"]

    asyncio.run(scenario())


def test_a_message_whose_handler_raised_is_delivered_again(stage: Callable[[], Any]) -> None:
    async def scenario() -> None:
        async with stage() as scene:
            scene.failures = [ValueError("once")]
            await scene.publish("m1")
            await until(lambda: len(scene.calls) >= 2)
        assert scene.calls == ["body of m1"] * 2
        assert scene.buried == []

    asyncio.run(scenario())


def test_a_message_that_cannot_be_handled_is_kept_once(stage: Callable[[], Any]) -> None:
    async def scenario() -> None:
        async with stage() as scene:
            scene.failures = [KeyError("final")]
            await scene.publish("m1")
            await until(lambda: bool(scene.buried))
            await scene.publish("m2")
            await until(lambda: len(scene.calls) >= 2)
        assert scene.calls == ["body of m1", "body of m2"]
        assert scene.buried == [("m1", "FINAL")]

    asyncio.run(scenario())


async def handler(body: str) -> None: ...


@pytest.mark.parametrize("policy", [None, AckPolicy.ACK_FIRST, AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK])
def test_a_subscriber_that_loses_messages_is_refused(policy: AckPolicy | None, tmp_path: Path) -> None:
    brokers: list[tuple[Any, dict[str, Any]]] = [
        (RabbitBroker(), {"queue": "orders"}),
        (NatsBroker(), {"subject": "orders", "stream": JStream("orders")}),
        (RedisBroker(), {"stream": StreamSub("orders", group="g", consumer="c", min_idle_time=1000)}),
    ]
    for broker, options in brokers:
        chosen = {} if policy is None else {"ack_policy": policy}
        broker.subscriber(**options, **chosen)(handler)
        protect(broker, "orders", store=f"sqlite:///{tmp_path}/a.db", dead_letter=bury)
        with pytest.raises(BrokerMisconfigured, match=r"'handler' .* write .*ack_policy=AckPolicy\.NACK_ON_ERROR"):
            asyncio.run(broker.start())


async def bury(delivery: Delivery, verdict: Verdict) -> None: ...


def test_subscribers_without_acknowledgements_are_refused(tmp_path: Path) -> None:
    brokers: list[tuple[Any, dict[str, Any], str]] = [
        (NatsBroker(), {"subject": "orders"}, "a stream of NATS JetStream"),
        (RedisBroker(), {"channel": "orders"}, "a stream of Redis with a group"),
        (RedisBroker(), {"list": "orders"}, "a stream of Redis with a group"),
        (RedisBroker(), {"stream": "orders"}, 'group="…", consumer="…"'),
        (RedisBroker(), {"stream": StreamSub("orders", group="g", consumer="c", no_ack=True)}, "without no_ack"),
        (RedisBroker(), {"stream": StreamSub("orders", group="g", consumer="c")}, "min_idle_time=60_000"),
    ]
    for broker, options, match in brokers:
        broker.subscriber(**options)(handler)
        protect(broker, "orders", store=f"sqlite:///{tmp_path}/a.db", dead_letter=bury)
        with pytest.raises(BrokerMisconfigured, match=match):
            asyncio.run(broker.start())


def test_dead_letters_on_redis_need_a_function(tmp_path: Path) -> None:
    broker = RedisBroker()
    broker.subscriber(stream=StreamSub("orders", group="g", consumer="c", min_idle_time=1000))(handler)
    protect(broker, "orders", store=f"sqlite:///{tmp_path}/a.db", dead_letter=None)
    with pytest.raises(BrokerMisconfigured, match="write dead_letter=, a function"):
        asyncio.run(broker.start())


def test_options_are_checked(tmp_path: Path) -> None:
    misspelt: dict[str, Any] = {"attempt_max": 3}
    with pytest.raises(TypeError, match="did you mean attempts_max="):
        protect(RabbitBroker(), "orders", store=f"sqlite:///{tmp_path}/a.db", dead_letter=None, **misspelt)
