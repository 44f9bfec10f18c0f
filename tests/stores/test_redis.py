"""The Redis store, both faces, against the contract."""

import pytest

from semel import open_async_store, open_store
from semel.store import AsyncStore, Clock, Store
from semel.testing import AsyncStoreContract, StoreContract


class OnRedis:
    url: str

    @pytest.fixture(autouse=True)
    def place(self, redis_url: str) -> None:
        self.url = redis_url


class TestRedisStore(OnRedis, StoreContract):
    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url, clock=clock)


class TestAsyncRedisStore(OnRedis, AsyncStoreContract):
    def open(self, clock: Clock | None) -> AsyncStore:
        return open_async_store(self.url, clock=clock)
