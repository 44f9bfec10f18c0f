"""The async face of the MariaDB store, and how its tasks share packets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from semel.core.effects import Doubts, Effect
from semel.core.outbox import OutboxCall, checked_call
from semel.core.records import Key
from semel.runtime.local import PerLoop
from semel.store import Clock, Counts, Filter, Migration, Page
from semel.stores.batch_face import CoalescedFace
from semel.stores.mariadb import operate, outbox, schema, scripts
from semel.stores.mariadb.doubts import doubts
from semel.stores.mariadb.driver import AsyncMariadbLink
from semel.stores.mariadb.settings import MariadbSettings
from semel.stores.poll_watch import AsyncPollingWatch
from semel.stores.sql.pool import AsyncConnections
from semel.stores.sql.statements import Script
from semel.stores.waiters import changed_key

T = TypeVar("T")
POLL_S = 0.2
"""How long a relay sleeps that waits for messages."""


class AsyncMariadbStore(CoalescedFace):
    """For tasks of any number of event loops. Connects on first use, in each loop that uses it."""

    def __init__(self, settings: MariadbSettings, *, clock: Clock | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._timeout_s = settings.timeout_s
        self._late = f"{settings.shown}: no answer within {settings.timeout_s:g} s"
        self._clock = clock
        self._connections = PerLoop(
            lambda: AsyncConnections(
                settings, lambda due_s: AsyncMariadbLink.open(settings, due_s), lambda: schema.ready(settings)
            )
        )
        self._watch = PerLoop(AsyncPollingWatch)

    async def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        return await self._watch.get().wait(key, owner, timeout_ms / 1000, self.get)

    async def doubts(self, before: frozenset[str] | None) -> frozenset[str]:
        await super().doubts(before)
        return await self._call(Doubts(before))

    async def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        return await self._run(operate.scan(filter, cursor, limit, self._now_ms()))

    async def counts(self) -> Counts:
        return await self._run(operate.counts(self._now_ms()))

    async def purge(self, *, limit: int) -> int:
        return await self._run(scripts.purge(limit, self._now_ms()))

    async def outbox(self, call: Effect[T]) -> T:
        return await self._call(checked_call(call))

    async def wait_for_messages(self, timeout_ms: int) -> None:
        """MariaDB has nothing that tells of a new message: the next look is a small query."""
        await asyncio.sleep(min(timeout_ms / 1000, POLL_S))

    def migrations(self) -> Sequence[Migration]:
        return schema.printable()

    async def migrate(self) -> Sequence[int]:
        return await self._connections.get().run_alone(schema.migrate(self._settings))

    async def close(self) -> None:
        await self._drain()
        connections = self._connections.take()
        if connections is not None:
            await connections.close()

    def _call(self, call: Effect[T]) -> Coroutine[Any, Any, T]:
        if self._settings.migrate and not self._connections.get().is_ready:
            return self._migrate_and_call(call)
        return super()._call(call)

    async def _migrate_and_call(self, call: Effect[T]) -> T:
        """The first calls wait for the tables, which may take longer than a call may."""
        await self._connections.get().make_ready()
        return await super()._call(call)

    async def _send(self, calls: Sequence[Any]) -> Sequence[Any]:
        if isinstance(calls[0], Doubts):
            return await self._run(doubts(calls, self._connections.get().lost_backends))
        if isinstance(calls[0], OutboxCall):
            return [await self._run(outbox.answer(call, self._now_ms())) for call in calls]
        replies = await self._run(scripts.answer(calls, self._now_ms()))
        wake = self._watch.get().waiters.wake
        for call, reply in zip(calls, replies, strict=True):
            if (key := changed_key(call, reply)) is not None:
                wake(key)
        return replies

    async def _run(self, script: Script[T]) -> T:
        return await self._connections.get().run(script)

    def _now_ms(self) -> int | None:
        return None if self._clock is None else self._clock()
