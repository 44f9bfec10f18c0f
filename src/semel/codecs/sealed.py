"""Results that only your service can read: AES-256-GCM around any store (`pip install 'semel[sealed]'`).

    store = Sealed(semel.open_store("postgresql://…"), keys={"2026-11": key})

The first of `keys` seals, every one of them opens. To rotate, add the new key at the end, everywhere; then move it to
the front; drop the old one when `retention` has passed since. A sealed result is bound to its key, to this life of it
(fingerprint, attempt and owner) and to its state. A copy of it under another key, or in a later life of its own, does
not open, and neither does a failure that was made a success. What does not open is
`RecordUnreadable`, never absent, so nothing runs again because of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from semel.codecs.origins import Origin, Origins
from semel.codecs.seal import Seal
from semel.core.records import Claimed, Key, Lease, Record, Result
from semel.errors import StoreMisconfigured
from semel.store import (
    AsyncInspectable,
    AsyncOutboxed,
    AsyncResolvable,
    AsyncStore,
    AttemptCounting,
    Doubting,
    Examinable,
    Filter,
    Inspectable,
    Migratable,
    Outboxed,
    Page,
    Removable,
    Resolvable,
    Store,
    Watchable,
    pass_on,
)

__all__ = ["AsyncSealed", "Seal", "Sealed", "find_seal"]
WITHOUT_RESULTS = (
    Watchable,
    Doubting,
    Removable,
    AttemptCounting,
    Outboxed,
    AsyncOutboxed,
    Migratable,
    Examinable,
)
"""Abilities that neither take nor give a result, so they are those of the store within. Both faces spell them alike."""


def find_seal(store: object, why: str) -> Seal | None:
    """What a store seals its results with; None when it does not.

    A store that hides its seal is refused: `why` says what would be stored in the clear beside it.
    """
    seal = getattr(store, "seal", None)
    if isinstance(seal, Seal):
        return seal
    kind = type(store).__name__
    if seal is not None:
        raise StoreMisconfigured(
            f"{kind} seals in a way of its own, and {why}: its attribute seal must be a Seal, not {type(seal).__name__}"
        )
    if any(isinstance(within, (Sealed, AsyncSealed)) for within in getattr(store, "__dict__", {}).values()):
        raise StoreMisconfigured(
            f"{kind} is around a sealed store, and {why}, which it would store in the clear: give {kind} the attribute "
            "seal of the store within"
        )
    return None


def _refuse_transactions(store: object) -> None:
    if getattr(store, "in_transactions", False):
        kind = type(store).__name__
        raise StoreMisconfigured(
            f"{kind} writes in transactions of its own, which nothing around it takes part in: give it the seal, "
            f"{kind}(…, seal=Seal(keys))"
        )


class Sealed:
    """A store whose results are encrypted, with AES-GCM, and bound to their key. Needs `semel[sealed]`.

    ```python
    import secrets
    import semel
    from semel.codecs.sealed import Sealed

    keys = {"2026-11": secrets.token_bytes(32)}  # from your secret manager: the same for every process
    store = Sealed(semel.open_store("sqlite:///semel.db"), keys=keys)
    ```

    The first of `keys` seals, and every one of them opens: put a new key first, and remove the old one after retention.
    `allow_plain` also reads what was stored before sealing. The sealed store has the abilities that the store within
    has, and no others. `seal` is for what writes results beside it: `semel.transaction.within(connection,
    seal=store.seal)`.
    """

    def __init__(self, store: Store, *, keys: Mapping[str, bytes], allow_plain: bool = False) -> None:
        _refuse_transactions(store)
        self._store = store
        self.seal = Seal(keys, allow_plain=allow_plain)
        self._origins = Origins()
        pass_on(store, self, WITHOUT_RESULTS)
        if isinstance(store, Inspectable):
            self.counts, self.scan = store.counts, self._scan
        if isinstance(store, Resolvable):
            self.resolve = self._resolve

    def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        self._origins.forget(key, owner)
        claimed = self._store.claim(
            key, fingerprint, owner=owner, lease_ms=lease_ms, retention_ms=retention_ms, takeover=takeover
        )
        self._origins.remember(claimed, fingerprint)
        return self.seal.claimed(claimed)

    def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        return self._store.renew(lease, lease_ms=lease_ms)

    def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        origin = self._origins.find(lease) or Origin.claimed(lease, self._store.get(lease.key))
        sealed = self.seal.seal(origin, result)
        done = self._store.complete(lease, sealed, retention_ms=retention_ms, refuse_ms=refuse_ms)
        self._origins.forget(lease.key, lease.owner)
        return done

    def release(self, lease: Lease) -> bool:
        released = self._store.release(lease)
        self._origins.forget(lease.key, lease.owner)
        return released

    def get(self, key: Key) -> Record | None:
        record = self._store.get(key)
        return None if record is None else self.seal.opened(record)

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
        return self.seal.page(self._store.scan(filter, cursor=cursor, limit=limit))

    def _resolve(self, seen: Record, result: Result | None, *, retention_ms: int) -> bool:
        assert isinstance(self._store, Resolvable)
        if result is not None:
            there = self._store.get(seen.key)  # what was seen may have been freed and claimed again
            result = self.seal.seal(Origin.resolved(there or seen), result)
        return self._store.resolve(seen, result, retention_ms=retention_ms)


class AsyncSealed:
    """A `Sealed` store for tasks, around an async store."""

    def __init__(self, store: AsyncStore, *, keys: Mapping[str, bytes], allow_plain: bool = False) -> None:
        _refuse_transactions(store)
        self._store = store
        self.seal = Seal(keys, allow_plain=allow_plain)
        self._origins = Origins()
        pass_on(store, self, WITHOUT_RESULTS)
        if isinstance(store, AsyncInspectable):
            self.counts, self.scan = store.counts, self._scan
        if isinstance(store, AsyncResolvable):
            self.resolve = self._resolve

    async def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        self._origins.forget(key, owner)
        claimed = await self._store.claim(
            key, fingerprint, owner=owner, lease_ms=lease_ms, retention_ms=retention_ms, takeover=takeover
        )
        self._origins.remember(claimed, fingerprint)
        return self.seal.claimed(claimed)

    async def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        return await self._store.renew(lease, lease_ms=lease_ms)

    async def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        origin = self._origins.find(lease) or Origin.claimed(lease, await self._store.get(lease.key))
        sealed = self.seal.seal(origin, result)
        done = await self._store.complete(lease, sealed, retention_ms=retention_ms, refuse_ms=refuse_ms)
        self._origins.forget(lease.key, lease.owner)
        return done

    async def release(self, lease: Lease) -> bool:
        released = await self._store.release(lease)
        self._origins.forget(lease.key, lease.owner)
        return released

    async def get(self, key: Key) -> Record | None:
        record = await self._store.get(key)
        return None if record is None else self.seal.opened(record)

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
        return self.seal.page(await self._store.scan(filter, cursor=cursor, limit=limit))

    async def _resolve(self, seen: Record, result: Result | None, *, retention_ms: int) -> bool:
        assert isinstance(self._store, AsyncResolvable)
        if result is not None:
            there = await self._store.get(seen.key)  # what was seen may have been freed and claimed again
            result = self.seal.seal(Origin.resolved(there or seen), result)
        return await self._store.resolve(seen, result, retention_ms=retention_ms)
