"""Consuming streams of NATS JetStream."""

import asyncio
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from inbox.adapters import AdapterScenarios, RestartScenarios, ServiceScenarios, Stub, running, until
from inbox.brokers import OnNats
from semel.core.verdicts import Handling, judge
from semel.errors import BrokerMisconfigured
from servers.nats import Nats, NatsServer


class TestNatsConsumer(AdapterScenarios, ServiceScenarios):
    @pytest.fixture
    def broker(self, nats_server: Nats) -> OnNats:
        return OnNats(nats_server.url)


class TestNatsRestarts(RestartScenarios):
    @pytest.fixture
    def private(self, private_nats: NatsServer) -> NatsServer:
        return private_nats

    @pytest.fixture
    def private_broker(self, private: NatsServer) -> OnNats:
        return OnNats(private.url)


def refusal(url: str, config: ConsumerConfig | None = None, **options: Any) -> str:
    async def scenario() -> str:
        broker = OnNats(url)
        await broker.prepare()
        if config is not None:
            await broker.configure(config)
        with pytest.raises(BrokerMisconfigured) as caught:
            await broker.worker(Stub(), **options).run()
        return str(caught.value).replace(broker.name, "STREAM")

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"ack_policy": AckPolicy.NONE}, "Change its configuration to ack_policy=AckPolicy.EXPLICIT"),
        ({"ack_policy": AckPolicy.ALL}, "Change its configuration to ack_policy=AckPolicy.EXPLICIT"),
        ({"max_deliver": 20}, "Change its configuration to max_deliver=-1"),
        ({"deliver_subject": "somewhere"}, "Change its configuration to no deliver_subject"),
    ],
)
def test_a_consumer_that_loses_messages_is_refused(nats_server: Nats, more: dict[str, Any], line: str) -> None:
    told = refusal(nats_server.url, ConsumerConfig(durable_name="tests_adapter", **more))
    assert told.startswith("the consumer 'tests_adapter' of stream 'STREAM' has ")
    assert told.endswith(line)


def test_dead_letters_need_a_stream(nats_server: Nats) -> None:
    told = refusal(nats_server.url, dead_letter="nobody.listens")
    assert told.startswith("no stream listens to dead_letter='nobody.listens', so dead letters would be lost")


def test_dead_letters_are_not_consumed_again(nats_server: Nats) -> None:
    async def scenario() -> None:
        broker = OnNats(nats_server.url)
        await broker.prepare()
        with pytest.raises(BrokerMisconfigured, match="would be consumed again"):
            await broker.worker(Stub(), dead_letter=f"{broker.name}.dead").run()
        limited = broker.worker(Stub(), dead_letter=f"{broker.name}.dead", durable="two", subject=f"{broker.name}.*")
        with pytest.raises(BrokerMisconfigured, match="would be consumed again"):
            await limited.run()
        with pytest.raises(BrokerMisconfigured, match=r'write dead_letter="dead\.orders"'):
            broker.worker(Stub(), dead_letter=None)

    asyncio.run(scenario())


def test_a_stream_that_is_not_there_is_named(nats_server: Nats) -> None:
    with pytest.raises(BrokerMisconfigured, match="NATS has no stream 'gone': add it"):
        asyncio.run(OnNats(nats_server.url, "gone").worker(Stub()).run())


def test_a_dead_letter_in_the_same_stream_is_not_taken_for_a_repeat(nats_server: Nats) -> None:
    async def scenario() -> None:
        broker = OnNats(nats_server.url)
        await broker.prepare()
        dead = f"{broker.name}.dead"
        stub = Stub(judge(Handling.FINAL, "no"))
        subject = f"{broker.name}.created"
        client = await nats.connect(broker.url)
        async with running(broker.worker(stub, dead_letter=dead, subject=subject)):
            await client.jetstream().publish(subject, b"{}", headers={"Nats-Msg-Id": "m1"})
            await until(stub.came(1))
        message = await client.jetstream().get_last_msg(broker.name, dead)
        assert (message.headers or {})["semel-id"] == "m1"
        await client.close()

    asyncio.run(scenario())
