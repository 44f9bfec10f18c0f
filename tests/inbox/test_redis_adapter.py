"""Consuming Redis streams."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from inbox.adapters import AdapterScenarios, RestartScenarios, ServiceScenarios, Stub, running, until
from inbox.brokers import OnRedis
from semel.errors import BrokerMisconfigured
from servers.redis import RedisServer


class TestRedisConsumer(AdapterScenarios, ServiceScenarios):
    @pytest.fixture
    def broker(self, redis_url: str) -> OnRedis:
        return OnRedis(redis_url)


class TestRedisRestarts(RestartScenarios):
    @pytest.fixture
    def private(self, private_redis: RedisServer) -> RedisServer:
        return private_redis

    @pytest.fixture
    def private_broker(self, private: RedisServer) -> OnRedis:
        return OnRedis(private.url)


def test_a_redis_that_evicts_streams_is_refused(private_redis: RedisServer) -> None:
    async def scenario() -> None:
        broker = OnRedis(private_redis.url)
        async with Redis.from_url(broker.url) as client:
            await client.config_set("maxmemory-policy", "allkeys-lru")
            with pytest.raises(BrokerMisconfigured, match="Run CONFIG SET maxmemory-policy noeviction"):
                await broker.worker(Stub()).run()
            await client.config_set("maxmemory-policy", "volatile-lru")  # evicts only what has a time to live
        async with running(broker.worker(stub := Stub())):
            await broker.publish("m1")
            await until(stub.came(1))

    asyncio.run(scenario())


def test_dead_letters_need_another_stream(redis_url: str) -> None:
    broker = OnRedis(redis_url, "orders")
    for wrong in (None, ""):
        with pytest.raises(BrokerMisconfigured, match=r'write dead_letter="orders\.dead"'):
            broker.worker(Stub(), dead_letter=wrong)
    with pytest.raises(BrokerMisconfigured, match=r'write dead_letter="orders\.dead"'):
        broker.worker(Stub(), dead_letter="orders")


def test_a_key_that_is_no_stream_is_named(redis_url: str) -> None:
    async def scenario() -> None:
        broker = OnRedis(redis_url)
        async with Redis.from_url(broker.url) as client:
            await client.set(broker.name, "text")
        with pytest.raises(BrokerMisconfigured, match=r"cannot make group 'tests\.adapter'"):
            await broker.worker(Stub()).run()

    asyncio.run(scenario())


def test_a_consumer_that_owes_nothing_leaves_the_group_and_one_that_owes_stays(redis_url: str) -> None:
    async def scenario() -> None:
        broker = OnRedis(redis_url)
        async with Redis.from_url(broker.url, decode_responses=True) as client:
            async with running(broker.worker(stub := Stub())):
                await broker.publish("m1")
                await until(stub.came(1))
            assert await client.xinfo_consumers(broker.name, "tests.adapter") == []
            await broker.publish("m2")
            blocked = Stub(blocked=True)
            worker = broker.worker(blocked, drain=0.05)
            run = asyncio.create_task(worker.run())
            await until(lambda: blocked.running == 1)
            worker.stop()
            await run
            found: Any = await client.xinfo_consumers(broker.name, "tests.adapter")
            assert [each["pending"] for each in found] == [1]

    asyncio.run(scenario())


def test_a_heartbeat_takes_nothing_back_from_another_consumer(redis_url: str) -> None:
    async def scenario() -> None:
        broker = OnRedis(redis_url)
        async with Redis.from_url(broker.url, decode_responses=True) as client:
            stub = Stub(blocked=True)
            async with running(broker.worker(stub)):
                await broker.publish("m1")
                await until(lambda: stub.running == 1)
                (entry,) = await client.xpending_range(broker.name, "tests.adapter", "-", "+", 1)
                await client.xclaim(broker.name, "tests.adapter", "another", 0, [entry["message_id"]])
                begun_s = asyncio.get_running_loop().time()
                await until(lambda: asyncio.get_running_loop().time() > begun_s + 0.9)  # two heartbeats
                (entry,) = await client.xpending_range(broker.name, "tests.adapter", "-", "+", 1)
                assert entry["consumer"] == "another"
                stub.gate.set()

    asyncio.run(scenario())
