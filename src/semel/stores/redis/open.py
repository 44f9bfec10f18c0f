"""Opens the store that a URL names."""

from __future__ import annotations

from semel.store import Clock
from semel.stores.redis.aio import AsyncRedisStore
from semel.stores.redis.settings import RedisSettings
from semel.stores.redis.store import RedisStore
from semel.stores.url import StoreUrl


def open_store(url: StoreUrl, clock: Clock | None) -> RedisStore:
    return RedisStore(RedisSettings.of(url), clock=clock)


def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncRedisStore:
    return AsyncRedisStore(RedisSettings.of(url), clock=clock)
