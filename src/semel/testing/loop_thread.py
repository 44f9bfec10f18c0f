"""An async store for callers that block: its loop runs in a thread, and threads that call at once are tasks there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from semel.core.records import Claimed, Key, Lease, Record, Result
from semel.store import (
    AsyncAttemptCounting,
    AsyncDoubting,
    AsyncInspectable,
    AsyncMigratable,
    AsyncRemovable,
    AsyncResolvable,
    AsyncStore,
    AsyncWatchable,
)

T = TypeVar("T")
P = ParamSpec("P")
ABILITIES: dict[type, tuple[str, ...]] = {
    AsyncWatchable: ("wait",),
    AsyncDoubting: ("doubts",),
    AsyncInspectable: ("scan", "counts"),
    AsyncResolvable: ("resolve",),
    AsyncRemovable: ("remove", "expire"),
    AsyncAttemptCounting: ("count_attempt",),
    AsyncMigratable: ("migrate",),
}


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="semel-testing-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingStore:
    """A `Store` that forwards to an `AsyncStore`. It has the abilities that the async store has, and no others."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._loop = LoopThread()
        for ability, names in ABILITIES.items():
            if isinstance(store, ability):
                for name in names:
                    setattr(self, name, self._blocking(getattr(store, name)))
        if isinstance(store, AsyncMigratable):
            self.migrations = store.migrations

    def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        return self._blocking(self._store.claim)(
            key, fingerprint, owner=owner, lease_ms=lease_ms, retention_ms=retention_ms, takeover=takeover
        )

    def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        return self._blocking(self._store.renew)(lease, lease_ms=lease_ms)

    def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        return self._blocking(self._store.complete)(lease, result, retention_ms=retention_ms, refuse_ms=refuse_ms)

    def release(self, lease: Lease) -> bool:
        return self._blocking(self._store.release)(lease)

    def get(self, key: Key) -> Record | None:
        return self._blocking(self._store.get)(key)

    def purge(self, *, limit: int) -> int:
        return self._blocking(self._store.purge)(limit=limit)

    def close(self) -> None:
        """Close the store in its own event loop, then end the loop."""
        self._blocking(self._store.close)()
        self._loop.close()

    def _blocking(self, method: Callable[P, Awaitable[T]]) -> Callable[P, T]:
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return await method(*args, **kwargs)

        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            return self._loop.run(call(*args, **kwargs))

        return run
