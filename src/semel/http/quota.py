"""How many new keys a tenant may have, by the `limits` library. Known keys are always answered.

Plans ask with the effects `Charge` and `GiveBack`, which `counting` performs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

from semel.core.effects import Effect
from semel.core.policy import Policy
from semel.errors import StoreMisconfigured, StoreUnavailable
from semel.http.counters import AsyncRedisWindow, Hit, MemoryWindow, RedisWindow, async_window_on, window_on
from semel.runtime.background import Background
from semel.runtime.local import AsyncOnce, PerLoop
from semel.runtime.perform import Performers
from semel.runtime.tasks import Tasks

if TYPE_CHECKING:
    from limits import RateLimitItem

DEFAULT_STORAGE = "memory://"
"""Counts in this process only. Give a URL of the `limits` library (redis://…) to count for all of them."""

COUNTING = {"memory": "memory", "redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
"""Where quotas can be counted, as the library names it. For a Valkey it would want a client of its own."""


@dataclass(frozen=True, slots=True)
class Charged:
    """A new key that was counted, until it is given back."""

    item: RateLimitItem
    tenant: str
    hit: Hit
    until_s: float
    """When it stops counting, by this process's own clock."""
    later: Callable[[Charged], None]

    @property
    def counts(self) -> bool:
        return time.monotonic() < self.until_s

    def give_back_later(self) -> None:
        """Give it back without waiting: for a caller that was cancelled."""
        self.later(self)


class Charge(Effect["Charged | int"], frozen=True):
    """Count a new key of the tenant in one atomic step. If it has too many: the seconds until it may have one."""

    policy: Policy
    tenant: str


class GiveBack(Effect[None], frozen=True):
    """Stop counting a key: it was known, or nothing was run."""

    charged: Charged


def _limits() -> Any:
    try:
        import limits
        import limits.aio
    except ModuleNotFoundError:
        raise StoreMisconfigured(
            "Policy.quota needs limits, which is not installed: pip install 'semel[quota]'"
        ) from None
    return limits


def _storage(url: str, prefix: str = "", **options: str) -> Any:
    limits = _limits()
    scheme, _, place = url.partition(":")
    engine, plus, way = scheme.partition("+")
    if engine not in COUNTING:
        raise StoreMisconfigured(
            f"quota_storage= cannot be used: nothing counts quotas in {engine}://… (the store itself may be there); "
            "give redis://… to count for all processes, or memory:// to count in each for itself"
        )
    used = f"{prefix}{COUNTING[engine]}{plus}{way}:{place}"
    try:
        return limits.storage.storage_from_string(used, **options)
    except Exception as error:
        shown = f"{scheme}://…"  # the rest may be a password
        raise StoreMisconfigured(f"quota_storage= cannot be used: {str(error).replace(used, shown)}") from None


@contextlib.contextmanager
def _map_errors() -> Iterator[None]:
    """Turn every error of a counter's storage into a store's failure, which plans handle."""
    try:
        yield
    except Exception as error:
        raise StoreUnavailable(f"the quota's storage failed: {type(error).__name__}: {error}") from error


class Quotas:
    """For threads. The storage is opened at first use, because a mark may bring the first quota."""

    def __init__(self, storage: str = DEFAULT_STORAGE) -> None:
        self._url = storage
        self._background = Background()

    @cached_property
    def limiter(self) -> MemoryWindow | RedisWindow:
        return window_on(_limits(), _storage(self._url))

    def charge(self, policy: Policy, tenant: str) -> Charged | int:
        window, item = self.limiter, _item(policy)
        with _map_errors():
            hit = window.hit(item, tenant)
            return _charged(item, tenant, hit, self._later) if hit else _seconds_until(window.stats(item, tenant))

    def give_back(self, charged: Charged) -> None:
        if charged.counts:
            with _map_errors():
                self.limiter.take_back(charged.item, charged.tenant, charged.hit)

    def _later(self, charged: Charged) -> None:
        self._background.do(lambda: self.give_back(charged))


class AsyncQuotas:
    """For tasks. Connections belong to one event loop; a count in memory is shared by all of them."""

    def __init__(self, storage: str = DEFAULT_STORAGE) -> None:
        self._url = storage
        self._in_memory = Quotas(storage) if storage.startswith("memory") else None
        self._windows = PerLoop(self._open)
        self._connected = PerLoop(AsyncOnce)
        self._tasks = Tasks()

    @cached_property
    def limiter(self) -> MemoryWindow | RedisWindow | AsyncRedisWindow:
        return self._open() if self._in_memory is None else self._in_memory.limiter

    def _open(self) -> AsyncRedisWindow:
        storage = _storage(self._url, "async+", implementation="redispy")  # the client of `semel[redis]`
        return async_window_on(_limits(), storage)

    async def charge(self, policy: Policy, tenant: str) -> Charged | int:
        if self._in_memory is not None:
            return self._in_memory.charge(policy, tenant)
        # In a task of its own: a cancelled caller must not leave a key counted that was never claimed.
        task = self._tasks.spawn(self._charge(_item(policy), tenant))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_give_back_late)
            raise

    async def _charge(self, item: RateLimitItem, tenant: str) -> Charged | int:
        window, connected = self._windows.get(), self._connected.get()
        if not connected.done:  # redis-py's client for clusters fails if many tasks begin with it at once
            await connected.do(partial(self._connect, window))
        with _map_errors():
            hit = await window.hit(item, tenant)
            return _charged(item, tenant, hit, self._later) if hit else _seconds_until(await window.stats(item, tenant))

    async def _connect(self, window: AsyncRedisWindow) -> None:
        with _map_errors():
            await window.connect()

    async def give_back(self, charged: Charged) -> None:
        if self._in_memory is not None:
            self._in_memory.give_back(charged)
        elif charged.counts:
            with _map_errors():
                await self._windows.get().take_back(charged.item, charged.tenant, charged.hit)

    def _later(self, charged: Charged) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended: the key counts until its window is over
            asyncio.get_running_loop()
            self._tasks.spawn(self.give_back(charged))


def _give_back_late(task: asyncio.Task[Charged | int]) -> None:
    if not task.cancelled() and task.exception() is None and isinstance(charged := task.result(), Charged):
        charged.give_back_later()


def counting(quotas: Quotas | AsyncQuotas) -> Performers:
    """The performers of the effects of quotas."""
    return {
        Charge: lambda effect: quotas.charge(effect.policy, effect.tenant),
        GiveBack: lambda effect: quotas.give_back(effect.charged),
    }


def _charged(item: RateLimitItem, tenant: str, hit: Hit, later: Callable[[Charged], None]) -> Charged:
    return Charged(item, tenant, hit, time.monotonic() + item.get_expiry(), later)


def _item(policy: Policy) -> RateLimitItem:
    assert policy.quota is not None
    return _parse(policy.quota)


@cache
def _parse(quota: str) -> RateLimitItem:
    item: RateLimitItem = _limits().parse(quota)
    return item


def _seconds_until(window: Any) -> int:
    left_s: float = window.reset_time - time.time()
    return max(1, math.ceil(left_s))
