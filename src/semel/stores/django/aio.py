"""The async face. Django's database layer blocks: each call goes through a thread, as in Django's own async methods."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

from asgiref.sync import sync_to_async

from semel.core.effects import Claim, Effect, Renew
from semel.core.records import Acquired, Lease
from semel.errors import StoreError
from semel.store import Clock, Counts, Filter, Migration, Page
from semel.stores.django.store import DjangoStore
from semel.stores.faces import AsyncFace

T = TypeVar("T")
POLL_S = 0.2
"""How long a relay sleeps that waits for messages: the next look is a small query."""


class AsyncDjangoStore(AsyncFace):
    """For tasks. Calls share the thread, and so the connection, that Django has for the request."""

    def __init__(self, alias: str = "default", *, clock: Clock | None = None) -> None:
        self._store = DjangoStore(alias, clock=clock)
        self._giving_back: set[asyncio.Future[None]] = set()

    async def _call(self, call: Effect[T]) -> T:
        # A renewal must not queue behind the view that it keeps the lease for, which may occupy the request's thread.
        in_thread = sync_to_async(self._store._call, thread_sensitive=not isinstance(call, Renew))
        made = asyncio.ensure_future(in_thread(call))
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            if isinstance(call, Claim):  # the thread goes on, and its caller would not know that the key is its own
                giving = asyncio.ensure_future(self._give_back(made, call))
                self._giving_back.add(giving)
                giving.add_done_callback(self._giving_back.discard)
            raise

    async def _give_back(self, made: asyncio.Future[Any], claim: Claim) -> None:
        await asyncio.wait({made})
        if not made.cancelled() and (made.exception() is not None or isinstance(made.result(), Acquired)):
            with suppress(StoreError):  # then it lapses: unknown, which is safe
                await self.release(Lease(claim.key, claim.owner, 1, 0))

    async def doubts(self, before: frozenset[str] | None) -> frozenset[str]:
        return await sync_to_async(self._store.doubts)(before)

    async def purge(self, *, limit: int) -> int:
        return await sync_to_async(self._store.purge)(limit=limit)

    async def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        return await sync_to_async(self._store.scan)(filter, cursor=cursor, limit=limit)

    async def counts(self) -> Counts:
        return await sync_to_async(self._store.counts)()

    async def outbox(self, call: Effect[T]) -> T:
        return await sync_to_async(self._store.outbox)(call)

    async def wait_for_messages(self, timeout_ms: int) -> None:
        await asyncio.sleep(min(timeout_ms / 1000, POLL_S))

    def migrations(self) -> Sequence[Migration]:
        return self._store.migrations()

    async def migrate(self) -> Sequence[int]:
        return await sync_to_async(self._store.migrate)()

    async def close(self) -> None:
        """The connections are Django's, and it closes them."""
