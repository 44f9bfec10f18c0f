"""Publishing to NATS JetStream, with a server of our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import nats
import pytest
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StreamConfig

from outbox.publisher_cases import PublisherCases, Seen
from semel.errors import BrokerMisconfigured, BrokerUnavailable, NotPublished, Poison
from semel.outbox import Message, open_publisher
from semel.outbox.nats import NatsPublisher
from servers.nats import NatsServer
from servers.needing import needed
from servers.process import free_port


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with needed("nats", NatsServer) as server:
        yield server


@asynccontextmanager
async def streams_of(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(server.url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def add_stream(server: NatsServer, subject: str, **settings: object) -> None:
    async with streams_of(server) as streams:
        await streams.add_stream(StreamConfig(name=subject.upper(), subjects=[subject], **settings))  # type: ignore[arg-type]


class TestNats(PublisherCases):
    @pytest.fixture
    def broker(self, server: NatsServer) -> NatsServer:
        return server

    def url(self, broker: NatsServer) -> str:
        return broker.url

    async def prepare(self, broker: NatsServer, topic: str) -> None:
        await add_stream(broker, topic)

    async def read(self, broker: NatsServer, topic: str) -> list[Seen]:
        async with streams_of(broker) as streams:
            count = (await streams.stream_info(topic.upper())).state.messages
            subscription = await streams.pull_subscribe(topic)
            seen: list[Seen] = []
            while len(seen) < count:
                for message in await subscription.fetch(count - len(seen), timeout=10):
                    headers = {name.lower(): value for name, value in (message.headers or {}).items()}
                    seen.append(
                        Seen(
                            id=headers["nats-msg-id"],
                            payload=message.data,
                            content_type=headers["content-type"],
                            key=headers.get("semel-key"),
                            headers=headers,
                        )
                    )
            return seen


def test_the_stream_drops_a_message_that_is_published_again(server: NatsServer) -> None:
    async def run() -> int:
        await add_stream(server, "again")
        one, other = open_publisher(server.url), open_publisher(server.url)
        for publisher in (one, other, one):
            await publisher.publish(Message("same", "again", b"1"))
            await publisher.publish(Message("same", "again", b"1", attempt=2))
        await asyncio.gather(one.close(), other.close())
        async with streams_of(server) as streams:
            return (await streams.stream_info("AGAIN")).state.messages

    assert asyncio.run(run()) == 1


def test_a_subject_without_a_stream_is_not_published_until_there_is_one(server: NatsServer) -> None:
    async def run() -> None:
        publisher = open_publisher(server.url)
        with pytest.raises(NotPublished, match="no stream listens to 'later': add one"):
            await publisher.publish(Message("m", "later", b""))
        await add_stream(server, "later")
        await publisher.publish(Message("m", "later", b""))
        await publisher.close()

    asyncio.run(run())


def test_a_stream_that_refuses(server: NatsServer) -> None:
    async def run() -> None:
        await add_stream(server, "small", max_msg_size=1000)
        await add_stream(server, "full", max_msgs=1, discard=DiscardPolicy.NEW)
        publisher, other = open_publisher(server.url), open_publisher(f"{server.url}?stream=FULL")
        with pytest.raises(Poison, match="raise max_msg_size of the stream"):
            await publisher.publish(Message("large", "small", bytes(2000)))
        with pytest.raises(Poison, match="raise max_payload of the server"):
            await publisher.publish(Message("larger", "small", bytes(1024 * 1024 + 1)))
        with pytest.raises(BrokerMisconfigured, match="'small' does not belong to stream FULL"):
            await other.publish(Message("m", "small", b""))
        await other.publish(Message("m", "full", b""))
        with pytest.raises(BrokerUnavailable, match="maximum messages exceeded"):
            await publisher.publish(Message("n", "full", b""))
        await asyncio.gather(publisher.close(), other.close())

    asyncio.run(run())


@pytest.mark.parametrize("subject", ["two words", "tab\tbed"])
def test_a_topic_that_is_no_subject(server: NatsServer, subject: str) -> None:
    async def run() -> None:
        publisher = open_publisher(server.url)
        with pytest.raises(Poison, match="cannot carry message m on subject"):
            await publisher.publish(Message("m", subject, b""))
        await publisher.close()

    asyncio.run(run())


def test_a_reply_that_is_not_jetstreams_confirms_nothing(server: NatsServer) -> None:
    async def run() -> None:
        client = await nats.connect(server.url)

        async def answer(message: Msg) -> None:
            await message.respond(replies.pop())

        replies = [b"thanks", json.dumps({"ok": True}).encode()]
        await client.subscribe("polite", cb=answer)
        await client.flush()
        publisher = open_publisher(server.url)
        for _ in range(2):
            with pytest.raises(NotPublished, match="not a reply of JetStream"):
                await publisher.publish(Message("m", "polite", b""))
        await publisher.close()
        await client.close()

    asyncio.run(run())


def test_a_login_that_is_refused() -> None:
    async def run(server: NatsServer) -> None:
        place = f"127.0.0.1:{server.port}"
        for login in ("", "u:wrong@"):
            publisher = open_publisher(f"nats://{login}{place}")
            with pytest.raises(BrokerMisconfigured, match="refuses the login: check user and password") as caught:
                await publisher.publish(Message("m", "q", b""))
            assert "wrong" not in str(caught.value)
            await publisher.close()

    with needed("nats", lambda: NatsServer("--user", "u", "--pass", "right")) as server:
        asyncio.run(run(server))


def test_one_of_several_servers_is_enough(server: NatsServer) -> None:
    async def run() -> None:
        await add_stream(server, "several")
        publisher = NatsPublisher(f"nats://127.0.0.1:{free_port()},127.0.0.1:{server.port}", stream="SEVERAL")
        await publisher.publish(Message("m", "several", b""))
        await publisher.close()

    asyncio.run(run())


def test_a_server_without_jetstream() -> None:
    class Plain(NatsServer):
        def command(self) -> list[object]:  # type: ignore[override]
            return [each for each in super().command() if each != "--jetstream"]

        def probe(self) -> None:
            try:
                super().probe()
            except AssertionError as error:
                if "JetStream" not in str(error):
                    raise

    async def run(server: NatsServer) -> None:
        publisher = open_publisher(server.url)
        with pytest.raises(BrokerMisconfigured, match="has no JetStream: start it with --jetstream"):
            await publisher.publish(Message("m", "q", b""))
        await publisher.close()

    with needed("nats", Plain) as server:
        asyncio.run(run(server))
