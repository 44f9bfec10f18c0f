"""Moving windows of the `limits` library whose hits can be given back. The library itself does not offer that.

Internals of limits 4.2 to 5 that are used, all of them here:

- `MemoryStorage.events[name]`: a list of entries, the newest first; `MemoryStorage.locks[name]`, where it has locks.
- `RedisStorage.prefixed_key(name)` names a Redis list of timestamps. `lua_acquire_moving_window` adds one, unless that
  is one too many. It is called directly, because the time names the hit. `get_connection()` is the client. The async
  storage has all three at its `bridge`.

Other storages are refused at start-up: repeats would use up their quota.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from semel.errors import StoreMisconfigured
from semel.runtime.local import PerProcess

if TYPE_CHECKING:
    from limits import RateLimitItem

CALLS_MAX = 50
"""How many calls of one process on Redis may run at once; more wait. The client's pool would refuse them instead."""
Hit = Any
"""The name of one hit, so that exactly this one can be given back."""
TAKE_BACK = "return redis.call('lrem', KEYS[1], 1, tonumber(ARGV[1]))"
"""The server formats the number as it did when it counted the hit."""


class MemoryWindow:
    """Hits of this process, from threads and tasks alike: no call waits for anything but a lock."""

    def __init__(self, limiter: Any) -> None:
        self._limiter = limiter
        # The library drops the lock of a name whose entries have all expired, although threads may wait for it.
        self._lock = PerProcess(threading.Lock)

    def hit(self, item: RateLimitItem, tenant: str) -> Hit | None:
        """Count one hit in one atomic step; None when that would be one too many."""
        with self._lock.get():
            if not self._limiter.hit(item, tenant):
                return None
            return self._limiter.storage.events[item.key_for(tenant)][0]

    def take_back(self, item: RateLimitItem, tenant: str, hit: Hit) -> None:
        storage, name = self._limiter.storage, item.key_for(tenant)
        theirs = storage.locks[name] if hasattr(storage, "locks") else contextlib.nullcontext()
        with self._lock.get(), theirs:
            entries = storage.events.get(name, [])
            for place, entry in enumerate(entries):
                if entry is hit:
                    del entries[place]
                    return

    def stats(self, item: RateLimitItem, tenant: str) -> Any:
        return self._limiter.get_window_stats(item, tenant)


class RedisWindow:
    """Hits of all processes."""

    def __init__(self, limiter: Any) -> None:
        self._limiter = limiter
        self._calls = PerProcess(lambda: threading.Semaphore(CALLS_MAX))

    def hit(self, item: RateLimitItem, tenant: str) -> Hit | None:
        storage, name = self._named(item, tenant)
        with self._calls.get():
            at = time.time()
            return at if storage.lua_acquire_moving_window([name], _terms(item, at)) else None

    def take_back(self, item: RateLimitItem, tenant: str, hit: Hit) -> None:
        storage, name = self._named(item, tenant)
        with self._calls.get():
            storage.get_connection().eval(TAKE_BACK, 1, name, repr(hit))

    def stats(self, item: RateLimitItem, tenant: str) -> Any:
        with self._calls.get():
            return self._limiter.get_window_stats(item, tenant)

    def _named(self, item: RateLimitItem, tenant: str) -> tuple[Any, str]:
        storage = self._limiter.storage
        return storage, storage.prefixed_key(item.key_for(tenant))


class AsyncRedisWindow:
    """The same for the tasks of one event loop."""

    def __init__(self, limiter: Any) -> None:
        self._limiter = limiter
        self._calls = asyncio.Semaphore(CALLS_MAX)

    async def connect(self) -> None:
        """Ask the server for the first time. Raises what the client raises if there is no answer."""
        await self._limiter.storage.bridge.get_connection().ping()

    async def hit(self, item: RateLimitItem, tenant: str) -> Hit | None:
        bridge, name = self._named(item, tenant)
        async with self._calls:
            at = time.time()
            return at if await bridge.lua_acquire_moving_window([name], _terms(item, at)) else None

    async def take_back(self, item: RateLimitItem, tenant: str, hit: Hit) -> None:
        bridge, name = self._named(item, tenant)
        async with self._calls:
            await bridge.get_connection().eval(TAKE_BACK, 1, name, repr(hit))

    async def stats(self, item: RateLimitItem, tenant: str) -> Any:
        async with self._calls:
            return await self._limiter.get_window_stats(item, tenant)

    def _named(self, item: RateLimitItem, tenant: str) -> tuple[Any, str]:
        bridge = self._limiter.storage.bridge
        return bridge, bridge.prefixed_key(item.key_for(tenant))


def _terms(item: RateLimitItem, at: float) -> list[float]:
    """The arguments of the library's script: the time of the hit, the limit, the window in seconds, and one hit."""
    return [at, item.amount, item.get_expiry(), 1]


def window_on(limits: Any, storage: Any) -> MemoryWindow | RedisWindow:
    """The window of a sync storage."""
    kinds = ((limits.storage.MemoryStorage, MemoryWindow), (limits.storage.RedisStorage, RedisWindow))
    for kind, window in kinds:
        if isinstance(storage, kind):
            return window(limits.strategies.MovingWindowRateLimiter(storage))
    raise _refusal(storage)


def async_window_on(limits: Any, storage: Any) -> AsyncRedisWindow:
    """The window of an async storage. A count in memory needs none: the sync one never waits."""
    if isinstance(storage, limits.aio.storage.RedisStorage):
        return AsyncRedisWindow(limits.aio.strategies.MovingWindowRateLimiter(storage))
    raise _refusal(storage)


def _refusal(storage: object) -> StoreMisconfigured:
    return StoreMisconfigured(
        f"quota_storage= cannot be used: what was counted in a {type(storage).__name__} of limits cannot be given "
        "back, so that repeats would use up the quota; give memory:// or redis://…"
    )
