"""Consuming queues of RabbitMQ."""

import asyncio
from collections.abc import Iterator
from typing import Any

import aio_pika
import pytest

from inbox.adapters import AdapterScenarios, RestartScenarios, ServiceScenarios, Stub, running, until
from inbox.brokers import OnRabbitmq
from semel.core.verdicts import Handling, judge
from semel.errors import BrokerMisconfigured
from semel.inbox.rabbitmq import DeadLetterExchange, RabbitmqConsumer
from servers.needing import needed
from servers.rabbitmq import Rabbitmq, RabbitmqServer


class TestRabbitmqConsumer(AdapterScenarios, ServiceScenarios):
    @pytest.fixture
    def broker(self, rabbitmq_server: Rabbitmq) -> OnRabbitmq:
        return OnRabbitmq(rabbitmq_server.url)


@pytest.fixture(scope="module")
def fragile_rabbitmq() -> Iterator[RabbitmqServer]:
    """One for all tests that kill it: it takes seconds to start."""
    with needed("rabbitmq", RabbitmqServer) as server:
        yield server


class TestRabbitmqRestarts(RestartScenarios):
    @pytest.fixture
    def private(self, fragile_rabbitmq: RabbitmqServer) -> RabbitmqServer:
        return fragile_rabbitmq.revive()

    @pytest.fixture
    def private_broker(self, private: RabbitmqServer) -> OnRabbitmq:
        return OnRabbitmq(private.url)


def test_dead_letters_need_a_place(rabbitmq_server: Rabbitmq) -> None:
    with pytest.raises(BrokerMisconfigured, match=r'write dead_letter="orders\.dead"') as caught:
        RabbitmqConsumer(rabbitmq_server.url, "orders", Stub())
    assert "dead_letter=None" in str(caught.value.__notes__)
    with pytest.raises(BrokerMisconfigured, match=r'write dead_letter="orders\.dead"'):
        RabbitmqConsumer(rabbitmq_server.url, "orders", Stub(), dead_letter="orders")


def test_queues_and_exchanges_that_are_not_there_are_named(rabbitmq_server: Rabbitmq) -> None:
    async def scenario() -> None:
        broker = OnRabbitmq(rabbitmq_server.url)
        with pytest.raises(BrokerMisconfigured, match=f"RabbitMQ has no queue '{broker.name}.dead': declare it"):
            await broker.worker(Stub()).run()
        with pytest.raises(BrokerMisconfigured, match=f"RabbitMQ has no queue '{broker.name}': declare it"):
            await broker.worker(Stub(), dead_letter=None).run()
        with pytest.raises(BrokerMisconfigured, match="RabbitMQ has no exchange 'gone': declare it"):
            await broker.worker(Stub(), dead_letter=DeadLetterExchange("gone")).run()

    asyncio.run(scenario())


def test_a_refused_login_is_named(rabbitmq_server: Rabbitmq) -> None:
    broker = OnRabbitmq(rabbitmq_server.url.replace("guest:guest", "guest:wrong"))
    with pytest.raises(BrokerMisconfigured, match="RabbitMQ refuses the login"):
        asyncio.run(broker.worker(Stub()).run())


def test_without_a_place_of_its_own_a_dead_letter_goes_to_the_queues_exchange(rabbitmq_server: Rabbitmq) -> None:
    async def scenario() -> None:
        broker = OnRabbitmq(rabbitmq_server.url)
        arguments: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{broker.name}.dead"}
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(broker.name, durable=True, arguments=arguments)
            await channel.declare_queue(f"{broker.name}.dead", durable=True)
        stub = Stub(judge(Handling.FINAL, "no"))
        async with running(broker.worker(stub, dead_letter=None)):
            await broker.publish("m1")
            await until(stub.came(1))
        assert await broker.left() == 0
        assert [each.id for each in await broker.dead()] == ["m1"]

    asyncio.run(scenario())


def test_dead_letters_may_go_to_an_exchange(rabbitmq_server: Rabbitmq) -> None:
    async def scenario() -> None:
        broker = OnRabbitmq(rabbitmq_server.url)
        await broker.prepare()
        async with await aio_pika.connect(broker.url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(f"{broker.name}.x", aio_pika.ExchangeType.DIRECT)
            await (await channel.get_queue(f"{broker.name}.dead")).bind(exchange, broker.name)
        stub = Stub(judge(Handling.FINAL, "no"))
        async with running(broker.worker(stub, dead_letter=DeadLetterExchange(f"{broker.name}.x"))):
            async with await aio_pika.connect(broker.url) as connection:
                message = aio_pika.Message(b"{}", message_id="m1", headers={"CC": ["elsewhere"]})
                await (await connection.channel()).default_exchange.publish(message, broker.name)
            await until(stub.came(1))
        assert await broker.left() == 0
        (dead,) = await broker.dead()
        assert (dead.id, "CC" in dead.headers) == ("m1", False)

    asyncio.run(scenario())
