"""The async face of the PostgreSQL store: calls that come while a batch is in flight make the next one."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from semel.core.effects import Doubts, Effect
from semel.core.outbox import OutboxCall, checked_call
from semel.core.records import Key
from semel.runtime.local import PerLoop
from semel.store import Clock, Counts, Filter, Migration, Page
from semel.stores.batch_face import CoalescedFace
from semel.stores.postgres import schema
from semel.stores.postgres.hints import MessageHints
from semel.stores.postgres.outbox import PostgresOutbox
from semel.stores.postgres.scripts import PostgresScripts
from semel.stores.postgres.sessions import AsyncPostgresLink
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.postgres.watch import AsyncWatch
from semel.stores.sql.pool import AsyncConnections
from semel.stores.sql.statements import Script
from semel.stores.waiters import changed_key

T = TypeVar("T")


class AsyncPostgresStore(CoalescedFace):
    """For tasks of any number of event loops. Connects on first use, in each loop that uses it."""

    def __init__(self, settings: PostgresSettings, *, clock: Clock | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._timeout_s = settings.timeout_s
        self._late = f"{settings.shown}: no answer within {settings.timeout_s:g} s"
        self._clock = clock
        self._scripts = PostgresScripts(settings.schema)
        self._outbox = PostgresOutbox(settings.schema)
        self._connections = PerLoop(
            lambda: AsyncConnections(
                settings, lambda due_s: AsyncPostgresLink.open(settings, due_s), lambda: schema.ready(settings)
            )
        )
        self._watch = PerLoop(lambda: AsyncWatch(settings))
        self._messages = PerLoop(lambda: MessageHints(settings))

    async def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        return await self._watch.get().wait(key, timeout_ms / 1000, lambda: self._run(self._scripts.watch(key, owner)))

    async def doubts(self, before: frozenset[str] | None) -> frozenset[str]:
        await super().doubts(before)
        return await self._call(Doubts(before))

    async def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        return await self._run(self._scripts.scan(filter, cursor, limit, self._now_ms()))

    async def counts(self) -> Counts:
        return await self._run(self._scripts.counts(self._now_ms()))

    async def purge(self, *, limit: int) -> int:
        return await self._run(self._scripts.purge(limit, self._now_ms()))

    async def outbox(self, call: Effect[T]) -> T:
        return await self._call(checked_call(call))

    async def wait_for_messages(self, timeout_ms: int) -> None:
        await self._messages.get().wait(timeout_ms / 1000)

    def migrations(self) -> Sequence[Migration]:
        return schema.printable(self._settings.schema)

    async def migrate(self) -> Sequence[int]:
        return await self._connections.get().run_alone(schema.migrate(self._settings.schema))

    async def close(self) -> None:
        await self._drain()
        messages = self._messages.take()
        if messages is not None:
            await messages.close()
        watch = self._watch.take()
        if watch is not None:
            await watch.close()
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
            return await self._run(self._scripts.doubts(calls, self._connections.get().lost_backends))
        if isinstance(calls[0], OutboxCall):
            return [await self._run(self._outbox.answer(call, self._now_ms())) for call in calls]
        replies = await self._run(self._scripts.answer(calls, self._now_ms()))
        wake = self._watch.get().waiters.wake
        for call, reply in zip(calls, replies, strict=True):
            if (key := changed_key(call, reply)) is not None:
                wake(key)
        return replies

    async def _run(self, script: Script[T]) -> T:
        return await self._connections.get().run(script)

    def _now_ms(self) -> int | None:
        return None if self._clock is None else self._clock()
