"""The Redis store, both faces, against the contract."""

from collections.abc import Callable

import pytest
import redis

from semel import Key, open_async_store, open_store
from semel.store import AsyncStore, Clock, Store
from semel.stores.redis.layout import frame, name_of
from semel.testing import AsyncStoreContract, StoreContract


class OnRedis:
    url: str

    @pytest.fixture(autouse=True)
    def place(self, redis_url: str) -> None:
        self.url = redis_url

    def spoil(self, key: Key) -> Callable[[], object]:
        name, driver = name_of(b"semel", frame(key)), redis.Redis.from_url(self.url)
        driver.set(name, b"\x02the next format")
        return lambda: driver.delete(name)


class TestRedisStore(OnRedis, StoreContract):
    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url, clock=clock)


class TestAsyncRedisStore(OnRedis, AsyncStoreContract):
    def open(self, clock: Clock | None) -> AsyncStore:
        return open_async_store(self.url, clock=clock)
