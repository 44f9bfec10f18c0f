"""The connections of one process, or of one event loop: a few slots, each empty or with an idle connection.

Not a driver's pool, on purpose. psycopg's connects in the background, with pauses that grow to minutes, and lets
callers wait meanwhile; aiomysql's waits for a free connection without a bound. A store that cannot be reached has to
say so at once, with the reason, and to be back with the server.

A call has one deadline (`due_s`) for all that it waits for: a free slot, a new connection, and its statements.

The pools of threads and of tasks stand side by side: they wait in different ways. What is on their connections is in
the folder of each database (`PostgresLink`, `MariadbLink`).
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Generic, Protocol, TypeVar

from semel.core.effects import Effect, T
from semel.errors import StoreTimeout, StoreUnavailable
from semel.runtime.deadline import find_due_s, tell_due
from semel.runtime.local import AsyncOnce, Once
from semel.stores.sql.lost import LostBackends
from semel.stores.sql.statements import Rows, Script

MIGRATE_S = 600.0
"""A migration may have to wait for another one, and may have to build an index."""


class PoolSettings(Protocol):
    """What a pool wants to know from a URL."""

    @property
    def shown(self) -> str: ...
    @property
    def timeout_s(self) -> float: ...
    @property
    def pool_max(self) -> int: ...
    @property
    def migrate(self) -> bool: ...


class Pooled(Protocol):
    """What a pool knows about a connection."""

    lost_before: int
    """How many connections had failed when this one was opened."""
    backend: str
    """The server's process, if it is known."""
    due_s: float | None

    @property
    def closed(self) -> bool: ...


class SqlLink(Pooled, Protocol):
    """A connection of threads. It is closed after a failure, so that no later call reads its answer."""

    def perform(self, effect: Effect[Any], /) -> Any: ...
    def run(self, script: Script[T]) -> T: ...
    def alone(self) -> AbstractContextManager[object]:
        """What is asked in this block is one transaction, where the database has such a thing for its schema."""
        ...

    def close(self) -> None: ...


class AsyncSqlLink(Pooled, Protocol):
    """The same for tasks."""

    async def run(self, script: Script[T]) -> T: ...
    def alone(self) -> AbstractAsyncContextManager[object]: ...
    async def close(self) -> None: ...


L = TypeVar("L", bound=SqlLink)
A = TypeVar("A", bound=AsyncSqlLink)


class Connections(Generic[L]):
    """For threads. `ready` looks at the schema once, before anything else."""

    def __init__(
        self, settings: PoolSettings, open_link: Callable[[float], L], ready: Callable[[], Script[None]]
    ) -> None:
        self._settings = settings
        self._open_link = open_link
        self._ready_script = ready
        self._slots: queue.LifoQueue[L | None] = queue.LifoQueue()
        for _ in range(settings.pool_max):
            self._slots.put(None)
        self._lost = 0  # how many connections failed; the idle ones from before the last failure are not trusted
        self.lost_backends = LostBackends()
        self._ready = Once()

    def run(self, script: Script[T]) -> T:
        due_s = find_due_s(time.monotonic(), self._settings.timeout_s)
        try:
            if not self._ready.done:
                self._ready.do(lambda: self._make_ready(due_s))
            link = self._take(due_s)
            try:
                return link.run(script)
            finally:
                self._give_back(link)
        except StoreUnavailable as failure:
            tell_due(failure, due_s)
            raise

    def run_alone(self, script: Script[T], *, due_s: float | None = None) -> T:
        """Run a script in one transaction; without `due_s` with all the time that a migration needs."""
        with self._borrowed(due_s) as link:
            link.due_s = due_s or time.monotonic() + MIGRATE_S
            with link.alone():
                return link.run(script)

    def with_link(self, look: Callable[[Callable[[Effect[Any]], Rows]], T]) -> T:
        """Let `look` ask in one transaction, whatever the schema is: nothing is made ready for it."""
        with self._borrowed() as link, link.alone():
            return look(link.perform)

    def close(self) -> None:
        for _ in range(self._settings.pool_max):
            try:
                link = self._slots.get(timeout=self._settings.timeout_s)
            except queue.Empty:
                return  # still in use, for longer than anything may take
            if link is not None:
                link.close()

    def _make_ready(self, due_s: float) -> None:
        self.run_alone(self._ready_script(), due_s=None if self._settings.migrate else due_s)

    @contextmanager
    def _borrowed(self, due_s: float | None = None) -> Iterator[L]:
        link = self._take(due_s or time.monotonic() + self._settings.timeout_s)
        try:
            yield link
        finally:
            self._give_back(link)

    def _take(self, due_s: float) -> L:
        try:
            link = self._slots.get(timeout=max(0.0, due_s - time.monotonic()))
        except queue.Empty:
            raise StoreTimeout(busy(self._settings)) from None
        if link is not None and link.lost_before == self._lost:
            link.due_s = due_s
            return link
        try:
            if link is not None:
                link.close()
            link = self._open_link(due_s)
        except BaseException:
            self._slots.put(None)
            raise
        link.lost_before = self._lost
        return link

    def _give_back(self, link: L) -> None:
        if link.closed:
            self._lost += 1
            self.lost_backends.add(link.backend)
        self._slots.put(None if link.closed else link)


class AsyncConnections(Generic[A]):
    """The same for the tasks of one event loop."""

    def __init__(
        self, settings: PoolSettings, open_link: Callable[[float], Awaitable[A]], ready: Callable[[], Script[None]]
    ) -> None:
        self._settings = settings
        self._open_link = open_link
        self._ready_script = ready
        self._slots: asyncio.LifoQueue[A | None] = asyncio.LifoQueue()
        for _ in range(settings.pool_max):
            self._slots.put_nowait(None)
        self._lost = 0
        self.lost_backends = LostBackends()
        self._ready = AsyncOnce()

    async def run(self, script: Script[T]) -> T:
        due_s = time.monotonic() + self._settings.timeout_s
        if not self._ready.done:
            await self.make_ready(due_s)
        link = await self._take(due_s)
        try:
            return await link.run(script)
        finally:
            self._give_back(link)

    async def run_alone(self, script: Script[T], *, due_s: float | None = None) -> T:
        async with self._borrowed(due_s) as link:
            link.due_s = due_s or time.monotonic() + MIGRATE_S
            async with link.alone():
                return await link.run(script)

    async def close(self) -> None:
        for _ in range(self._settings.pool_max):
            try:
                link = await asyncio.wait_for(self._slots.get(), self._settings.timeout_s)
            except TimeoutError:
                return
            if link is not None:
                await link.close()

    async def _slot(self, due_s: float) -> A | None:
        if not self._slots.empty():  # a timer for nothing costs as much as the rest of this
            return self._slots.get_nowait()
        try:
            async with asyncio.timeout(due_s - time.monotonic()):
                return await self._slots.get()
        except TimeoutError:
            raise StoreTimeout(busy(self._settings)) from None

    @property
    def is_ready(self) -> bool:
        return self._ready.done

    async def make_ready(self, due_s: float | None = None) -> None:
        """Look at the schema, once, and create or upgrade it if the settings say so."""
        by_s = None if self._settings.migrate else due_s
        await self._ready.do(lambda: self.run_alone(self._ready_script(), due_s=by_s))

    @asynccontextmanager
    async def _borrowed(self, due_s: float | None = None) -> AsyncIterator[A]:
        link = await self._take(due_s or time.monotonic() + self._settings.timeout_s)
        try:
            yield link
        finally:
            self._give_back(link)

    async def _take(self, due_s: float) -> A:
        link = await self._slot(due_s)
        if link is not None and link.lost_before == self._lost:
            link.due_s = due_s
            return link
        try:
            if link is not None:
                await link.close()
            link = await self._open_link(due_s)
        except BaseException:
            self._slots.put_nowait(None)
            raise
        link.lost_before = self._lost
        return link

    def _give_back(self, link: A) -> None:
        if link.closed:
            self._lost += 1
            self.lost_backends.add(link.backend)
        self._slots.put_nowait(None if link.closed else link)


def busy(settings: PoolSettings) -> str:
    return (
        f"{settings.shown}: all {settings.pool_max} connections are busy since {settings.timeout_s:g} s; raise pool_max"
    )
