"""The Redis store on a cluster and behind sentinels, both faces, against the contract."""

from collections.abc import Callable
from typing import ClassVar

import pytest
import redis

from semel import Key, open_async_store, open_store
from semel.store import AsyncStore, Clock, Store
from semel.stores.redis.layout import frame, name_of
from semel.testing import AsyncStoreContract, StoreContract
from servers.redis_cluster import RedisCluster
from servers.redis_sentinel import RedisSentinels

FEW = 25
"""Histories: each call goes to another node, and the model is compared in full on a single server."""


class OnCluster:
    url: str
    cluster: ClassVar[RedisCluster]  # not of the object, which goes to other processes

    @pytest.fixture(autouse=True)
    def place(self, cluster_url: str, redis_cluster: RedisCluster) -> None:
        self.url = cluster_url
        OnCluster.cluster = redis_cluster

    def spoil(self, key: Key) -> Callable[[], object]:
        name = name_of(b"semel", frame(key))
        driver = redis.Redis.from_url(self.cluster.owner(name).url)
        driver.set(name, b"\x02the next format")
        return lambda: driver.delete(name)


class OnSentinels:
    url: str
    sentinels: ClassVar[RedisSentinels]

    @pytest.fixture(autouse=True)
    def place(self, sentinel_url: str, redis_sentinels: RedisSentinels) -> None:
        self.url = sentinel_url
        OnSentinels.sentinels = redis_sentinels

    def spoil(self, key: Key) -> Callable[[], object]:
        name, driver = name_of(b"semel", frame(key)), redis.Redis.from_url(self.sentinels.master().url)
        driver.set(name, b"\x02the next format")
        return lambda: driver.delete(name)


class TestRedisClusterStore(OnCluster, StoreContract):
    parity_examples = FEW

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url, clock=clock)


class TestAsyncRedisClusterStore(OnCluster, AsyncStoreContract):
    parity_examples = FEW

    def open(self, clock: Clock | None) -> AsyncStore:
        return open_async_store(self.url, clock=clock)


class TestRedisSentinelStore(OnSentinels, StoreContract):
    parity_examples = FEW
    test_of_many_processes_one_wins = None  # type: ignore[assignment]  # the scripts and keys are a single server's

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url, clock=clock)


class TestAsyncRedisSentinelStore(OnSentinels, AsyncStoreContract):
    parity_examples = FEW
    test_of_many_processes_one_wins = None  # type: ignore[assignment]

    def open(self, clock: Clock | None) -> AsyncStore:
        return open_async_store(self.url, clock=clock)
