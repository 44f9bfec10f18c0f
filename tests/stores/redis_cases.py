"""What the tests of the Redis store share: servers with other settings, and short words for common calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from semel import Acquired, Key, Lease, Result, open_async_store, open_store
from semel.stores.redis.aio import AsyncRedisStore
from semel.stores.redis.store import RedisStore
from servers.needing import needed
from servers.redis import RedisServer

KEY = Key("tenant", "POST /payments", "key")
RESULT = Result("raw", b"\x00\xffanswer")
CLAIM: dict[str, Any] = {"lease_ms": 30_000, "retention_ms": 60_000, "takeover": False}


@contextmanager
def server(*arguments: str) -> Iterator[RedisServer]:
    with needed("redis", lambda: RedisServer(*arguments)) as running:
        yield running


def sync_store(url: str, **options: Any) -> RedisStore:
    store = open_store(url, **options)
    assert isinstance(store, RedisStore)
    return store


def async_store(url: str, **options: Any) -> AsyncRedisStore:
    store = open_async_store(url, **options)
    assert isinstance(store, AsyncRedisStore)
    return store


def granted(claimed: object) -> Lease:
    assert isinstance(claimed, Acquired), claimed
    return claimed.lease


def key(number: int) -> Key:
    return Key("tenant", "POST /payments", f"key-{number}")


def client(url: str) -> Any:
    """The driver itself, to look at what is stored and to do what operators and accidents do."""
    return redis.Redis.from_url(url)
