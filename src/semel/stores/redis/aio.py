"""The async face: calls of one kind that wait together are one script, and one connection is all that a kind needs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from semel.core.copies import CopyCall
from semel.core.effects import Effect, Plan
from semel.core.records import Key
from semel.errors import StoreUnavailable
from semel.runtime.drive import adrive
from semel.runtime.local import PerLoop
from semel.store import Clock, Counts, Filter, Page
from semel.stores.batch_face import CoalescedFace
from semel.stores.redis.failures import ours
from semel.stores.redis.operate import RedisOperators
from semel.stores.redis.scripts import RedisScripts
from semel.stores.redis.servers import AsyncRedisServers, slots_of
from semel.stores.redis.settings import RedisSettings
from semel.stores.redis.walk import Walk
from semel.stores.redis.watch import NEVER_LOOKED, POLL_S, AsyncListener
from semel.stores.waiters import AsyncWaiters, changed_key

T = TypeVar("T")


class AsyncRedisLink:
    """The connections of one event loop, and what it knows about the servers."""

    def __init__(self, settings: RedisSettings) -> None:
        self._servers = AsyncRedisServers(settings)
        self.route = self._servers.route
        self.waiters = AsyncWaiters()
        self.listener = AsyncListener(self._servers.make_listening, self.waiters)

    async def run(self, plan: Plan[T]) -> T:
        return await adrive(plan, self._servers.perform)

    async def close(self) -> None:
        await self.listener.close()
        await self._servers.close()


class AsyncRedisStore(CoalescedFace):
    """Redis or Valkey, for tasks. Connects on first use, in each process and event loop that uses it.

    `wait` is that of `store.py`: only `await` differs.
    """

    def __init__(self, settings: RedisSettings, *, clock: Clock | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._timeout_s = settings.timeout_s
        self._late = str(ours(settings, TimeoutError()))
        place = settings.prefix, partial(ours, settings), slots_of(settings)
        self._scripts, self._operators = RedisScripts(*place), RedisOperators(*place)
        self._clock = clock
        self._link = PerLoop(lambda: AsyncRedisLink(settings))
        self._purged_to = Walk()

    def _lane(self, call: Effect[Any]) -> object:
        """Each node of a cluster has lanes of its own: one that hangs keeps no call for another one waiting."""
        route = self._link.get().route
        return type(call) if route is None else (type(call), route.lane(self._scripts.name_for(call)))

    async def _send(self, calls: Sequence[Any]) -> Sequence[Any]:
        link = self._link.get()
        replies = await link.run(self._scripts.answer(calls, self._now()))
        if link.waiters.keys():
            for call, reply in zip(calls, replies, strict=True):
                if (key := changed_key(call, reply)) is not None:
                    link.waiters.wake(key)
        return replies

    async def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        """Sleep until `owner` no longer holds `key`. Wakes early when the store is away: the next claim says so."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        link = self._link.get()
        name = self._scripts.name_of(key)
        with link.waiters.registered(key) as changed, link.listener.following(name, key) as channel:
            doubts, pause_s = NEVER_LOOKED, 0.0 if channel.confirmed else POLL_S
            while True:
                told = await changed.wait(min(pause_s, deadline - loop.time()))
                if told and channel.doubts == doubts:
                    return True
                doubts, pause_s = channel.doubts, POLL_S
                changed.clear()
                if not await self._held(key, owner):
                    return True
                if loop.time() >= deadline:
                    return False

    async def _held(self, key: Key, owner: str) -> bool:
        try:
            record = await self.get(key)
        except StoreUnavailable:
            return False
        return record is not None and record.in_progress() and record.owner == owner

    async def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        """Each record once; again only if the keyspace was resized between two pages (SCAN says "at least once")."""
        return await self._link.get().run(self._operators.scan(filter, cursor, limit, self._now()))

    async def counts(self) -> Counts:
        """Walks through the whole keyspace in short steps: for an operator, not for every request."""
        return await self._link.get().run(self._operators.counts(self._now()))

    async def purge(self, *, limit: int) -> int:
        """Goes on where the last call ended, at most once around. Redis collects by itself an hour later."""
        gone, self._purged_to = await self._link.get().run(self._operators.purge(limit, self._now(), self._purged_to))
        return gone

    def open_front(self, *, timeout_ms: int) -> AsyncRedisStore:
        return AsyncRedisStore(self._settings.as_front(timeout_ms))

    async def answer_copy(self, call: CopyCall[T]) -> T:
        return await self._call(call)

    async def close(self) -> None:
        await self._drain()
        if link := self._link.take():
            await link.close()

    def _now(self) -> int | None:
        return None if self._clock is None else self._clock()
