"""The async face. The two stores batch: what waits for the front is one round trip, the rest is one to the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Self, TypeVar

from semel.core.copies import CopyCall, FindCopy, ForbidCopy, OpenCopy, PutCopy
from semel.core.effects import Claim, Complete, Release, Renew
from semel.core.records import Claimed, Key, Lease, Record, Result
from semel.errors import StoreError
from semel.runtime.background import QUEUE_MAX
from semel.runtime.deadline import SHARED_DUE_S
from semel.runtime.drive import adrive
from semel.runtime.local import PerLoop
from semel.runtime.perform import Performers, async_performer
from semel.store import AsyncFronting, AsyncRemovable, AsyncResolvable, AsyncStore, AsyncWatchable, Clock
from semel.stores.tiered.scripts import AskBack, CopyLater, TieredScripts
from semel.stores.tiered.store import AnyTieredStore

T = TypeVar("T")
AT_ONCE = 64
"""Copies that are made at the same time, so in one batch."""


class AsyncTieredStore(AnyTieredStore):
    """The same for tasks, line by line but for `await`."""

    _scripts: TieredScripts

    def __init__(self, front: AsyncFronting, back: AsyncStore, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(front, back, clock, options)
        others: Performers = {
            **dict.fromkeys((FindCopy, OpenCopy, PutCopy), self._try),
            ForbidCopy: self._forbid,
            CopyLater: self._copy_later,
            AskBack: lambda effect: effect.ask(),
        }
        self._perform = async_performer(back, others=others)
        self._copiers = PerLoop(lambda: AsyncCopier(lambda key: adrive(self._scripts.copy(key), self._perform)))
        if self._has(AsyncResolvable):
            self.resolve = self._resolve
        if self._has(AsyncRemovable):
            self.remove, self.expire = self._remove, self._expire
        if self._has(AsyncWatchable) and self._settings.hint_ms:
            self.wait = self._wait

    async def claim(
        self, key: Key, fingerprint: str, *, owner: str, lease_ms: int, retention_ms: int, takeover: bool
    ) -> Claimed:
        call = Claim(key, fingerprint, owner, lease_ms, retention_ms, takeover).checked()
        return await adrive(self._scripts.claim(call), self._perform)

    async def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        return await adrive(self._scripts.change(lease.key, Renew(lease, lease_ms)), self._perform)

    async def complete(self, lease: Lease, result: Result, *, retention_ms: int, refuse_ms: int = 0) -> bool:
        return await adrive(self._scripts.complete(Complete(lease, result, retention_ms, refuse_ms)), self._perform)

    async def release(self, lease: Lease) -> bool:
        return await adrive(self._scripts.change(lease.key, Release(lease)), self._perform)

    async def get(self, key: Key) -> Record | None:
        record: Record | None = await self._back.get(key)
        return record

    async def purge(self, *, limit: int) -> int:
        gone: int = await self._back.purge(limit=limit)
        return gone

    async def close(self) -> None:
        if (copier := self._copiers.take()) is not None:
            await copier.close()
        for store in (self._front, self._given_front, self._back):
            await store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def _resolve(self, seen: Record, result: Result | None, *, retention_ms: int) -> bool:
        ask = partial(self._back.resolve, seen, result, retention_ms=retention_ms)
        return await adrive(self._scripts.change(seen.key, AskBack[bool](ask)), self._perform)

    async def _remove(self, seen: Record) -> bool:
        return await adrive(self._scripts.end(seen.key, AskBack(partial(self._back.remove, seen))), self._perform)

    async def _expire(self, seen: Record) -> bool:
        return await adrive(self._scripts.end(seen.key, AskBack(partial(self._back.expire, seen))), self._perform)

    async def _wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        ended: bool = await self._back.wait(key, owner=owner, timeout_ms=timeout_ms)
        self._scripts.distrust(key, self._settings.hint_ms)
        return ended

    async def _copy_later(self, effect: CopyLater) -> None:
        self._copiers.get().add(effect.key)

    async def _forbid(self, call: ForbidCopy) -> bool | None:
        return await (self._front.answer_copy(call) if call.forbid_ms else self._try(call))

    async def _try(self, call: CopyCall[T]) -> T | None:
        if not self._health.may_ask():
            return None
        try:
            reply: T = await self._front.answer_copy(call)
        except StoreError as failure:
            self._health.note_failure(failure)
            return None
        self._health.note_answer()
        return reply


class AsyncCopier:
    """Makes copies in a task, many at once, while the next ones wait. What there is no room for, a replay copies."""

    def __init__(self, copy: Callable[[Key], Awaitable[object]]) -> None:
        self._copy = copy
        self._waiting: dict[Key, None] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, key: Key) -> None:
        if len(self._waiting) < QUEUE_MAX:
            self._waiting[key] = None
            if self._task is None or self._task.done():
                context = copy_context()  # it works for many callers
                context.run(SHARED_DUE_S.set, None)
                self._task = context.run(asyncio.get_running_loop().create_task, self._run())

    async def close(self) -> None:
        """Wait for the copies at hand, and make no more: the stores are about to be closed."""
        self._waiting.clear()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._waiting:
            some = list(self._waiting)[:AT_ONCE]
            for key in some:
                del self._waiting[key]
            await asyncio.gather(*map(self._work, some))

    async def _work(self, key: Key) -> None:
        with suppress(StoreError):
            await self._copy(key)
