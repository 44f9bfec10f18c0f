"""Publishing to RabbitMQ, with a broker of our own."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import suppress

import aio_pika
import pytest

from outbox.publisher_cases import PATIENCE_MS, PublisherCases, Seen
from semel.errors import BrokerMisconfigured, BrokerUnavailable, NotPublished, Poison
from semel.outbox import Message, Publisher, open_publisher
from semel.outbox.rabbitmq import RabbitmqPublisher
from servers.needing import needed
from servers.rabbitmq import RabbitmqServer


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[RabbitmqServer]:
    with needed("rabbitmq", RabbitmqServer) as server:
        yield server


async def declare(server: RabbitmqServer, queue: str) -> None:
    async with await aio_pika.connect(server.url) as connection:
        await (await connection.channel()).declare_queue(queue, durable=True)


async def take_all(server: RabbitmqServer, queue: str) -> list[aio_pika.abc.AbstractIncomingMessage]:
    async with await aio_pika.connect(server.url) as connection:
        found = await (await connection.channel()).get_queue(queue)
        taken = []
        while (message := await found.get(no_ack=True, fail=False)) is not None:
            taken.append(message)
        return taken


class TestRabbitmq(PublisherCases):
    @pytest.fixture
    def broker(self, rabbitmq: RabbitmqServer) -> RabbitmqServer:
        return rabbitmq

    def url(self, broker: RabbitmqServer) -> str:
        return broker.url

    async def prepare(self, broker: RabbitmqServer, topic: str) -> None:
        await declare(broker, topic)

    async def read(self, broker: RabbitmqServer, topic: str) -> list[Seen]:
        return [
            Seen(
                id=message.message_id or "",
                payload=message.body,
                content_type=message.content_type or "",
                key=str(message.headers["semel-key"]) if "semel-key" in message.headers else None,
                headers={name.lower(): str(value) for name, value in message.headers.items()},
            )
            for message in await take_all(broker, topic)
        ]

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_the_next_event_loop_gets_a_connection_of_its_own(self, broker: RabbitmqServer) -> None:
        """aio-pika complains of the loop that ended before its connection, when the collector finds that: now."""
        super().test_the_next_event_loop_gets_a_connection_of_its_own(broker)
        gc.collect()


def test_a_restart_while_nothing_is_published_costs_no_message_its_confirmation(rabbitmq: RabbitmqServer) -> None:
    async def run() -> None:
        await declare(rabbitmq, "restarted")
        publisher = open_publisher(rabbitmq.url)
        await publisher.publish(Message("before", "restarted", b""))
        await asyncio.to_thread(rabbitmq.restart)
        await publisher.publish(Message("after", "restarted", b""))
        assert [each.message_id for each in await take_all(rabbitmq, "restarted")] == ["before", "after"]
        await publisher.close()

    asyncio.run(run())


def test_messages_are_persistent_and_go_through_the_exchange(rabbitmq: RabbitmqServer) -> None:
    async def run() -> None:
        async with await aio_pika.connect(rabbitmq.url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange("events", "topic", durable=True)
            queue = await channel.declare_queue("shipments", durable=True)
            await queue.bind(exchange, "orders.*")
            publisher = open_publisher(f"{rabbitmq.url}?exchange=events")
            await publisher.publish(Message("m", "orders.shipped", b"1"))
            await publisher.close()
            message = await queue.get(no_ack=True)
            assert (message.exchange, message.routing_key) == ("events", "orders.shipped")
            assert message.delivery_mode is aio_pika.DeliveryMode.PERSISTENT

    asyncio.run(run())


def test_a_message_that_no_queue_takes_is_not_published_until_one_does(rabbitmq: RabbitmqServer) -> None:
    async def run() -> None:
        publisher = open_publisher(rabbitmq.url)
        with pytest.raises(NotPublished, match="no queue takes 'later' from exchange '': bind one"):
            await publisher.publish(Message("m", "later", b""))
        await declare(rabbitmq, "later")
        await publisher.publish(Message("m", "later", b""))
        assert len(await take_all(rabbitmq, "later")) == 1
        await publisher.close()

    asyncio.run(run())


def test_the_same_message_side_by_side_is_never_taken_for_confirmed(rabbitmq: RabbitmqServer) -> None:
    async def run() -> list[BaseException | None]:
        publisher = open_publisher(rabbitmq.url)
        same = Message("same", "no-such-queue", b"")
        found = await asyncio.gather(*(publisher.publish(same) for _ in range(5)), return_exceptions=True)
        await publisher.close()
        return found

    assert {type(each) for each in asyncio.run(run())} == {NotPublished}


def test_dropping_what_no_queue_takes_can_be_chosen(rabbitmq: RabbitmqServer) -> None:
    async def run() -> None:
        publisher = open_publisher(f"{rabbitmq.url}?unroutable_fail=false")
        await publisher.publish(Message("m", "no-such-queue", b""))
        await publisher.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("amqp://guest:wrong@{place}/", "refuses the login: check user and password"),
        ("amqp://guest:guest@{place}/no-such-vhost", "refuses the virtual host: check its name"),
        ("amqp://guest:guest@{place}/?exchange=no-such", "cannot publish to exchange 'no-such'.*declare it, or name"),
    ],
)
def test_settings_with_which_nothing_can_be_published(rabbitmq: RabbitmqServer, url: str, complaint: str) -> None:
    async def run() -> None:
        publisher = open_publisher(url.format(place=f"127.0.0.1:{rabbitmq.port}"))
        results = await asyncio.gather(
            *(publisher.publish(Message(f"m-{n}", "q", b"")) for n in range(3)), return_exceptions=True
        )
        assert {type(each) for each in results} == {BrokerMisconfigured}, results
        with pytest.raises(BrokerMisconfigured, match=complaint) as caught:
            await publisher.publish(Message("m", "q", b""))
        assert "guest:" not in str(caught.value).replace("guest:***", "")
        await publisher.close()

    asyncio.run(run())


def test_a_full_queue_that_refuses_is_unavailable_and_costs_no_attempt(rabbitmq: RabbitmqServer) -> None:
    async def run() -> None:
        async with await aio_pika.connect(rabbitmq.url) as connection:
            limits: dict[str, str | int] = {"x-max-length": 1, "x-overflow": "reject-publish"}
            await (await connection.channel()).declare_queue("small", durable=True, arguments=limits)  # type: ignore[arg-type]
        publisher = open_publisher(rabbitmq.url)
        results: list[BaseException | None] = []
        for n in range(4):
            results += await asyncio.gather(publisher.publish(Message(f"m-{n}", "small", b"")), return_exceptions=True)
        kinds = [type(each).__name__ for each in results]
        assert kinds[0] == "NoneType"
        assert kinds[-1] == "BrokerUnavailable"
        await publisher.close()

    asyncio.run(run())


def test_the_name_of_a_header_that_amqp_has_no_room_for(rabbitmq: RabbitmqServer) -> None:
    async def run() -> None:
        publisher = open_publisher(rabbitmq.url)
        with pytest.raises(Poison, match="names of headers of up to 255 characters"):
            await publisher.publish(Message("m", "q", b"", headers={"x" * 256: "v"}))
        await publisher.close()

    asyncio.run(run())


async def publish_as_a_relay(publisher: Publisher, message: Message) -> None:
    """Again while the broker is away: RabbitMQ closes the whole connection if a frame comes on a closed channel."""
    for _ in range(20):
        with suppress(BrokerUnavailable):
            return await publisher.publish(message)
        await asyncio.sleep(0.05)
    raise AssertionError(f"the broker is still away for {message.id}")


def test_a_message_too_large_for_the_broker_is_poison_and_its_neighbours_are_not(rabbitmq: RabbitmqServer) -> None:
    """RabbitMQ closes the channel of all of them."""

    async def run() -> None:
        await declare(rabbitmq, "sized")
        publisher = open_publisher(f"{rabbitmq.url}?timeout_ms={PATIENCE_MS}")
        large = Message("large", "sized", bytes(2 * 1024 * 1024))
        small = [Message(f"small-{n}", "sized", b"") for n in range(10)]
        results = await asyncio.gather(
            *(publish_as_a_relay(publisher, each) for each in (*small[:5], large, *small[5:])), return_exceptions=True
        )
        assert isinstance(results.pop(5), Poison)
        assert results == [None] * 10
        assert {each.message_id for each in await take_all(rabbitmq, "sized")} == {each.id for each in small}
        await publisher.close()

    asyncio.run(run())


def test_messages_that_come_while_the_channel_is_being_closed_are_published(rabbitmq: RabbitmqServer) -> None:
    """The fault is another message's: none of these is refused."""

    async def run() -> None:
        await declare(rabbitmq, "shut")
        publisher = open_publisher(f"{rabbitmq.url}?timeout_ms={PATIENCE_MS}")
        await publisher.publish(Message("first", "shut", b""))

        async def publish_later(number: int) -> None:
            await asyncio.sleep(number / 2_000)
            await publish_as_a_relay(publisher, Message(f"small-{number}", "shut", b""))

        large = publish_as_a_relay(publisher, Message("large", "shut", bytes(2 * 1024 * 1024)))
        results = await asyncio.gather(large, *map(publish_later, range(60)), return_exceptions=True)
        assert isinstance(results.pop(0), Poison)
        assert results == [None] * 60
        await publisher.close()

    asyncio.run(run())


def test_it_is_made_with_keywords_too(rabbitmq: RabbitmqServer) -> None:
    async def run() -> None:
        await declare(rabbitmq, "direct")
        publisher = RabbitmqPublisher(rabbitmq.url, exchange="", timeout_ms=PATIENCE_MS)
        await publisher.publish(Message("m", "direct", b""))
        await publisher.close()

    asyncio.run(run())
    with pytest.raises(ValueError, match="timeout_ms must be 50 to 600000, not 1"):
        RabbitmqPublisher(rabbitmq.url, timeout_ms=1)
