"""Opens the store that a URL names."""

from __future__ import annotations

from semel.store import Clock
from semel.stores.redis.aio import AsyncRedisStore
from semel.stores.redis.settings import Settings
from semel.stores.redis.store import RedisStore
from semel.stores.url import StoreUrl


def open_store(url: StoreUrl, clock: Clock | None) -> RedisStore:
    return RedisStore(Settings.of(url), clock=clock)


def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncRedisStore:
    return AsyncRedisStore(Settings.of(url), clock=clock)
