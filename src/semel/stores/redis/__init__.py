"""Redis and Valkey: one string for each record, decided by Lua scripts, a batch in one round trip.

What Redis alone cannot promise: a failover may lose what the old primary acknowledged, and without an append-only file
so does a restart. The start-up check (`check.py`) refuses a server that evicts and warns about one that forgets.
"""

from __future__ import annotations

from semel.store import Clock
from semel.stores.redis.aio import AsyncRedisStore
from semel.stores.redis.check import RedisSettingsWarning
from semel.stores.redis.connect import Settings, parse
from semel.stores.redis.store import RedisStore
from semel.stores.url import StoreUrl

__all__ = ["AsyncRedisStore", "RedisSettingsWarning", "RedisStore", "Settings", "open_async_store", "open_store"]


def open_store(url: StoreUrl, clock: Clock | None) -> RedisStore:
    return RedisStore(parse(url), clock=clock)


def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncRedisStore:
    return AsyncRedisStore(parse(url), clock=clock)
