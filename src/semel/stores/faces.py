"""The two faces of a store: the named methods of the protocol, each turned into one call value for one place that
answers it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

from semel.core.attempts import CountAttempt
from semel.core.effects import Claim, Complete, Effect, Read, Release, Remove, Renew, Resolve
from semel.core.records import Claimed, Key, Lease, Record, Result

T = TypeVar("T")


class Face(ABC):
    """The sync face. A store implements `_call`; the checks of the call values apply to every store alike."""

    host: object = None
    """What the functions on this store share; it lives as long as the store."""

    @abstractmethod
    def _call(self, call: Effect[T]) -> T: ...

    def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        return self._call(Claim(key, fingerprint, owner, lease_ms, retention_ms, takeover).checked())

    def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        return self._call(Renew(lease, lease_ms).checked())

    def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        return self._call(Complete(lease, result, retention_ms, refuse_ms).checked())

    def release(self, lease: Lease) -> bool:
        return self._call(Release(lease))

    def get(self, key: Key) -> Record | None:
        return self._call(Read(key))

    def resolve(self, seen: Record, result: Result | None, *, retention_ms: int) -> bool:
        return self._call(Resolve(seen.key, seen.owner, seen.attempt, result, retention_ms).checked())

    def remove(self, seen: Record) -> bool:
        return self._call(_remove(seen))

    def expire(self, seen: Record) -> bool:
        return self._call(_remove(seen, expire=True))

    def count_attempt(self, key: Key, error: str, *, retention_ms: int) -> int:
        return self._call(CountAttempt(key, error, retention_ms).checked())

    @abstractmethod
    def purge(self, *, limit: int) -> int: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class AsyncFace(ABC):
    """The async face."""

    host: object = None

    @abstractmethod
    def _call(self, call: Effect[T]) -> Coroutine[Any, Any, T]: ...

    async def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        return await self._call(Claim(key, fingerprint, owner, lease_ms, retention_ms, takeover).checked())

    async def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        return await self._call(Renew(lease, lease_ms).checked())

    async def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        return await self._call(Complete(lease, result, retention_ms, refuse_ms).checked())

    async def release(self, lease: Lease) -> bool:
        return await self._call(Release(lease))

    async def get(self, key: Key) -> Record | None:
        return await self._call(Read(key))

    async def resolve(self, seen: Record, result: Result | None, *, retention_ms: int) -> bool:
        return await self._call(Resolve(seen.key, seen.owner, seen.attempt, result, retention_ms).checked())

    async def remove(self, seen: Record) -> bool:
        return await self._call(_remove(seen))

    async def expire(self, seen: Record) -> bool:
        return await self._call(_remove(seen, expire=True))

    async def count_attempt(self, key: Key, error: str, *, retention_ms: int) -> int:
        return await self._call(CountAttempt(key, error, retention_ms).checked())

    @abstractmethod
    async def purge(self, *, limit: int) -> int: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self: T) -> T:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


def _remove(seen: Record, *, expire: bool = False) -> Remove:
    return Remove(seen.key, seen.owner, seen.attempt, seen.created_ms, seen.completed_ms, expire)
