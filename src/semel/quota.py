"""How many new keys a tenant may have, by the `limits` library. Known keys are always answered.

Plans ask with effects (`OverQuota`, `Charge`); `counting` performs those beside a store's.
"""

from __future__ import annotations

import math
import time
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from semel.core.effects import Effect
from semel.core.policy import Policy
from semel.drive import Performers
from semel.errors import StoreMisconfigured, StoreUnavailable
from semel.stores.local import PerLoop

if TYPE_CHECKING:
    from limits import RateLimitItem

DEFAULT_STORAGE = "memory://"
"""Counts in this process only. Give a URL of the `limits` library (redis://…) to count for all of them."""


class OverQuota(Effect["int | None"], frozen=True):
    """Seconds until the tenant may have another new key, or None."""

    policy: Policy
    tenant: str


class Charge(Effect[None], frozen=True):
    """Count a new key of the tenant."""

    policy: Policy
    tenant: str


def _limits() -> Any:
    try:
        import limits
        import limits.aio
    except ModuleNotFoundError:
        raise StoreMisconfigured(
            "Policy.quota needs limits, which is not installed: pip install 'semel[quota]'"
        ) from None
    return limits


def _storage(url: str, **options: str) -> Any:
    limits = _limits()
    try:
        return limits.storage.storage_from_string(url, **options)
    except Exception as error:
        shown = f"{url.partition('://')[0]}://…"  # the rest may be a password
        raise StoreMisconfigured(f"quota_storage= cannot be used: {str(error).replace(url, shown)}") from None


def failed(error: Exception) -> StoreUnavailable:
    """Whatever a counter's storage raised. Plans know what to do when a store fails."""
    return StoreUnavailable(f"the quota's storage failed: {type(error).__name__}: {error}")


class Quotas:
    """For threads. The storage is opened by the first question, because a mark may bring the first quota."""

    def __init__(self, storage: str = DEFAULT_STORAGE) -> None:
        self._url = storage

    @cached_property
    def limiter(self) -> Any:
        return _limits().strategies.MovingWindowRateLimiter(_storage(self._url))

    def wait_s(self, policy: Policy, tenant: str) -> int | None:
        """Seconds until the tenant may have another new key; None when it may have one now."""
        limiter, item = self.limiter, _item(policy)
        try:
            return None if limiter.test(item, tenant) else _seconds_until(limiter.get_window_stats(item, tenant))
        except Exception as error:
            raise failed(error) from error

    def charge(self, policy: Policy, tenant: str) -> None:
        limiter, item = self.limiter, _item(policy)
        try:
            limiter.hit(item, tenant)
        except Exception as error:
            raise failed(error) from error


class AsyncQuotas:
    """For tasks. Connections belong to one event loop."""

    def __init__(self, storage: str = DEFAULT_STORAGE) -> None:
        self._url = storage
        self._limiters = PerLoop(self._open)

    @cached_property
    def limiter(self) -> Any:
        return self._open()

    def _open(self) -> Any:
        options = {"implementation": "redispy"} if self._url.startswith("redis") else {}  # what `semel[redis]` brings
        return _limits().aio.strategies.MovingWindowRateLimiter(_storage(f"async+{self._url}", **options))

    def _here(self) -> Any:
        return self.limiter if self._url.startswith("memory") else self._limiters.get()

    async def wait_s(self, policy: Policy, tenant: str) -> int | None:
        limiter, item = self._here(), _item(policy)
        try:
            if await limiter.test(item, tenant):
                return None
            return _seconds_until(await limiter.get_window_stats(item, tenant))
        except Exception as error:
            raise failed(error) from error

    async def charge(self, policy: Policy, tenant: str) -> None:
        limiter, item = self._here(), _item(policy)
        try:
            await limiter.hit(item, tenant)
        except Exception as error:
            raise failed(error) from error


def counting(quotas: Quotas | AsyncQuotas) -> Performers:
    """Who performs the effects of quotas."""
    return {
        OverQuota: lambda effect: quotas.wait_s(effect.policy, effect.tenant),
        Charge: lambda effect: quotas.charge(effect.policy, effect.tenant),
    }


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
