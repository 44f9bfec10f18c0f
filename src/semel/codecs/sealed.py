"""Results that only your service can read: AES-256-GCM around any store (`pip install 'semel[sealed]'`).

    store = Sealed(semel.open_store("postgresql://…"), keys={"2026-11": key})

The first of `keys` seals, every one of them opens. To rotate, add the new key at the end, everywhere; then move it to
the front; drop the old one when `retention` has passed since. A sealed result is bound to its key and to its state: a
copy of it under another key, or a failure made a success, does not open. What does not open is `RecordUnreadable`,
never absent, so nothing runs again because of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from semel.codecs.seal import Seal
from semel.core.records import Claimed, Key, Lease, Record, Result
from semel.store import (
    AsyncInspectable,
    AsyncResolvable,
    AsyncStore,
    Examinable,
    Filter,
    Inspectable,
    Migratable,
    Page,
    Removable,
    Resolvable,
    Store,
    Watchable,
)

WITHOUT_RESULTS = (Watchable, Removable, Migratable, Examinable)
"""Abilities that neither take nor give a result, so they are those of the store within. Both faces spell them alike."""


def _pass_on(within: object, outside: object, abilities: tuple[type, ...]) -> None:
    """On the object and not on its class: `isinstance` must find what the store within has, and nothing else."""
    for ability in abilities:
        if isinstance(within, ability):
            for name in vars(ability):
                if not name.startswith("_"):
                    setattr(outside, name, getattr(within, name))


class Sealed:
    """A store whose results are sealed. It has the abilities that the store within has, and no others."""

    def __init__(self, store: Store, *, keys: Mapping[str, bytes], allow_plain: bool = False) -> None:
        self._store = store
        self._seal = Seal(keys, allow_plain=allow_plain)
        _pass_on(store, self, WITHOUT_RESULTS)
        if isinstance(store, Inspectable):
            self.counts, self.scan = store.counts, self._scan
        if isinstance(store, Resolvable):
            self.resolve = self._resolve

    def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        claimed = self._store.claim(
            key, fingerprint, owner=owner, lease_ms=lease_ms, retention_ms=retention_ms, takeover=takeover
        )
        return self._seal.claimed(claimed)

    def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        return self._store.renew(lease, lease_ms=lease_ms)

    def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        sealed = self._seal.seal(lease.key, result)
        return self._store.complete(lease, sealed, retention_ms=retention_ms, refuse_ms=refuse_ms)

    def release(self, lease: Lease) -> bool:
        return self._store.release(lease)

    def get(self, key: Key) -> Record | None:
        record = self._store.get(key)
        return None if record is None else self._seal.opened(record)

    def purge(self, *, limit: int) -> int:
        return self._store.purge(limit=limit)

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        assert isinstance(self._store, Inspectable)
        return self._seal.page(self._store.scan(filter, cursor=cursor, limit=limit))

    def _resolve(self, seen: Record, result: Result | None, *, retention_ms: int) -> bool:
        assert isinstance(self._store, Resolvable)
        sealed = None if result is None else self._seal.seal(seen.key, result)
        return self._store.resolve(seen, sealed, retention_ms=retention_ms)


class AsyncSealed:
    """The same around an async store."""

    def __init__(self, store: AsyncStore, *, keys: Mapping[str, bytes], allow_plain: bool = False) -> None:
        self._store = store
        self._seal = Seal(keys, allow_plain=allow_plain)
        _pass_on(store, self, WITHOUT_RESULTS)
        if isinstance(store, AsyncInspectable):
            self.counts, self.scan = store.counts, self._scan
        if isinstance(store, AsyncResolvable):
            self.resolve = self._resolve

    async def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        claimed = await self._store.claim(
            key, fingerprint, owner=owner, lease_ms=lease_ms, retention_ms=retention_ms, takeover=takeover
        )
        return self._seal.claimed(claimed)

    async def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        return await self._store.renew(lease, lease_ms=lease_ms)

    async def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        sealed = self._seal.seal(lease.key, result)
        return await self._store.complete(lease, sealed, retention_ms=retention_ms, refuse_ms=refuse_ms)

    async def release(self, lease: Lease) -> bool:
        return await self._store.release(lease)

    async def get(self, key: Key) -> Record | None:
        record = await self._store.get(key)
        return None if record is None else self._seal.opened(record)

    async def purge(self, *, limit: int) -> int:
        return await self._store.purge(limit=limit)

    async def close(self) -> None:
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def _scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        assert isinstance(self._store, AsyncInspectable)
        return self._seal.page(await self._store.scan(filter, cursor=cursor, limit=limit))

    async def _resolve(self, seen: Record, result: Result | None, *, retention_ms: int) -> bool:
        assert isinstance(self._store, AsyncResolvable)
        sealed = None if result is None else self._seal.seal(seen.key, result)
        return await self._store.resolve(seen, sealed, retention_ms=retention_ms)
