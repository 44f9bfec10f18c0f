"""Publishing to Redis streams, with servers of our own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from outbox.publisher_cases import PublisherCases, Seen
from semel.errors import BrokerMisconfigured, BrokerUnavailable, NotPublished, Poison
from semel.outbox import Message, open_publisher
from semel.outbox.redis import RedisPublisher
from servers.needing import needed
from servers.redis import RedisServer
from waiting import until


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with needed("redis", lambda: RedisServer("--repl-diskless-sync-delay", "0")) as server:  # for one replica
        yield server


def entries(server: RedisServer, stream: str) -> list[dict[str, bytes]]:
    with redis.Redis.from_url(server.url) as client:
        return [{name.decode(): value for name, value in fields.items()} for _, fields in client.xrange(stream)]


class TestRedis(PublisherCases):
    @pytest.fixture
    def broker(self, server: RedisServer) -> RedisServer:
        return server

    def url(self, broker: RedisServer) -> str:
        return broker.url

    async def prepare(self, broker: RedisServer, topic: str) -> None:
        pass

    async def read(self, broker: RedisServer, topic: str) -> list[Seen]:
        return [
            Seen(
                id=fields["semel-id"].decode(),
                payload=fields["payload"],
                content_type=fields["content-type"].decode(),
                key=fields["semel-key"].decode() if "semel-key" in fields else None,
                headers={name.lower(): value.decode() for name, value in fields.items() if name != "payload"},
            )
            for fields in entries(broker, topic)
        ]


def test_prefix_and_trimming(server: RedisServer) -> None:
    async def run() -> None:
        publisher = open_publisher(f"{server.url}?prefix=events:&maxlen=100")
        await asyncio.gather(*(publisher.publish(Message(f"m-{n}", "trim", b"")) for n in range(1000)))
        await publisher.close()

    asyncio.run(run())
    assert 100 <= len(entries(server, "events:trim")) < 400


def test_one_entry_that_is_refused_is_nobody_elses_failure(server: RedisServer) -> None:
    async def run() -> list[BaseException | None]:
        with redis.Redis.from_url(server.url) as client:
            client.set("text", "1")
        publisher = open_publisher(server.url)
        found = await asyncio.gather(
            *(publisher.publish(Message(f"m-{n}", "text" if n == 3 else "other", b"")) for n in range(7)),
            return_exceptions=True,
        )
        await publisher.close()
        return found

    found = asyncio.run(run())
    assert isinstance(refused := found.pop(3), NotPublished)
    assert "WRONGTYPE" in str(refused)
    assert found == [None] * 6
    assert len(entries(server, "other")) == 6


def test_a_header_with_the_name_of_the_payload(server: RedisServer) -> None:
    async def run() -> None:
        publisher = open_publisher(server.url)
        with pytest.raises(Poison, match="has a header 'payload', the name of the field of the payload"):
            await publisher.publish(Message("m", "q", b"", headers={"payload": "x"}))
        await publisher.close()

    asyncio.run(run())


def test_replicas_that_are_not_there_confirm_nothing(server: RedisServer) -> None:
    async def run() -> None:
        publisher = open_publisher(f"{server.url}?replicas=1&timeout_ms=1000")
        with pytest.raises(BrokerUnavailable, match="0 of 1 replicas confirmed within 500 ms"):
            await publisher.publish(Message("m", "replicated", b""))
        await publisher.close()

    asyncio.run(run())


def test_a_replica_that_is_there_confirms(server: RedisServer) -> None:
    async def run() -> None:
        publisher = open_publisher(f"{server.url}?replicas=1&timeout_ms=20000")
        await publisher.publish(Message("m", "replicated", b""))
        await publisher.close()

    with needed("redis", lambda: RedisServer("--replicaof", "127.0.0.1", str(server.port))) as replica:
        with redis.Redis.from_url(server.url) as client:
            until(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
        asyncio.run(run())
        assert entries(replica, "replicated")


@pytest.mark.parametrize(
    ("settings", "option", "complaint"),
    [
        (("--appendonly", "no"), "accept_no_persistence", "has no append-only file: set appendonly yes"),
        (
            ("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"),
            "accept_eviction",
            "evicts keys .allkeys-lru.: set maxmemory-policy noeviction",
        ),
    ],
)
def test_a_server_that_would_lose_messages(settings: tuple[str, ...], option: str, complaint: str) -> None:
    async def run(server: RedisServer) -> None:
        strict, lax = open_publisher(server.url), open_publisher(f"{server.url}?{option}=true")
        with pytest.raises(BrokerMisconfigured, match=f"{complaint}.*{option}=true accepts that"):
            await strict.publish(Message("m", "q", b""))
        await lax.publish(Message("m", "q", b""))
        await asyncio.gather(strict.close(), lax.close())

    with needed("redis", lambda: RedisServer(*settings)) as server:
        asyncio.run(run(server))


def test_a_login_that_is_refused(server: RedisServer) -> None:
    async def run() -> None:
        publisher = open_publisher(server.url.replace("//", "//someone:wrong@"))
        with pytest.raises(BrokerMisconfigured, match="check user, password and rights") as caught:
            await publisher.publish(Message("m", "q", b""))
        assert "wrong@" not in str(caught.value)
        await publisher.close()

    asyncio.run(run())


def test_a_server_that_is_full_is_unavailable() -> None:
    async def run(server: RedisServer) -> None:
        publisher = open_publisher(server.url)
        await publisher.publish(Message("m", "q", b""))
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory", 1)
        with pytest.raises(BrokerUnavailable, match="used memory"):
            await publisher.publish(Message("n", "q", b""))
        await publisher.close()

    with needed("redis", RedisServer) as server:
        asyncio.run(run(server))


def test_a_prefix_that_is_none(server: RedisServer) -> None:
    with pytest.raises(BrokerMisconfigured, match="prefix must be up to 64 visible ASCII characters"):
        RedisPublisher(server.url, prefix="a b")
