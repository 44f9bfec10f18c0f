"""The connections of one process, or of one event loop: a few slots, each empty or with an idle connection.

Not psycopg's pool, on purpose: that one connects in the background, with pauses that grow to minutes, and lets callers
wait meanwhile. A store that cannot be reached has to say so at once, with the reason, and to be back with the server.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from semel.core.effects import Effect, T
from semel.drive import adrive, drive
from semel.errors import StoreUnavailable
from semel.stores.local import AsyncOnce, Once
from semel.stores.postgres import schema
from semel.stores.postgres.connect import AsyncLink, Link, failures_of
from semel.stores.postgres.settings import Settings
from semel.stores.sql.statements import Rows, Script

MIGRATE_S = 600.0
"""A migration may have to wait for another one, and may have to build an index."""


class Connections:
    """For threads. The schema is looked at once, before anything else."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._slots: queue.LifoQueue[Link | None] = queue.LifoQueue()
        for _ in range(settings.pool_max):
            self._slots.put(None)
        self._lost = 0  # how many connections failed; the idle ones from before the last failure are not trusted
        self._ready = Once()

    def run(self, script: Script[T]) -> T:
        if not self._ready.done:
            self._ready.do(self._make_ready)
        link = self._take()
        try:
            return drive(script, link.perform)
        finally:
            self._give_back(link)

    def run_alone(self, script: Script[T], *, patient: bool = True) -> T:
        """Run a script in one transaction; `patient` with all the time that a migration needs."""
        with self._borrowed() as link, failures_of(self._settings.shown):
            try:
                link.timeout_s = MIGRATE_S if patient else self._settings.timeout_s
                with link.transaction():
                    return drive(script, link.perform)
            finally:
                link.timeout_s = self._settings.timeout_s

    def with_link(self, look: Callable[[Callable[[Effect[Any]], Rows]], T]) -> T:
        """Let `look` ask in one transaction, whatever the schema is: nothing is made ready for it."""
        with self._borrowed() as link, failures_of(self._settings.shown), link.transaction():
            return look(link.perform)

    def close(self) -> None:
        for _ in range(self._settings.pool_max):
            try:
                link = self._slots.get(timeout=self._settings.timeout_s)
            except queue.Empty:
                return  # still in use, for longer than anything may take
            if link is not None:
                link.close()

    def _make_ready(self) -> None:
        self.run_alone(schema.ready(self._settings), patient=self._settings.migrate)

    @contextmanager
    def _borrowed(self) -> Iterator[Link]:
        link = self._take()
        try:
            yield link
        finally:
            self._give_back(link)

    def _take(self) -> Link:
        try:
            link = self._slots.get(timeout=self._settings.timeout_s)
        except queue.Empty:
            raise StoreUnavailable(busy(self._settings)) from None
        if link is not None and link.lost_before == self._lost:
            return link
        try:
            if link is not None:
                link.close()
            link = Link.open(self._settings)
        except BaseException:
            self._slots.put(None)
            raise
        link.lost_before = self._lost
        return link

    def _give_back(self, link: Link) -> None:
        if link.closed:
            self._lost += 1
        self._slots.put(None if link.closed else link)


class AsyncConnections:
    """The same for the tasks of one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._slots: asyncio.LifoQueue[AsyncLink | None] = asyncio.LifoQueue()
        for _ in range(settings.pool_max):
            self._slots.put_nowait(None)
        self._lost = 0
        self._ready = AsyncOnce()

    async def run(self, script: Script[T]) -> T:
        if not self._ready.done:
            await self._ready.do(self._make_ready)
        link = await self._take()
        try:
            return await adrive(script, link.perform)
        finally:
            self._give_back(link)

    async def run_alone(self, script: Script[T], *, patient: bool = True) -> T:
        async with self._borrowed() as link:
            with failures_of(self._settings.shown):
                try:
                    link.timeout_s = MIGRATE_S if patient else self._settings.timeout_s
                    async with link.transaction():
                        return await adrive(script, link.perform)
                finally:
                    link.timeout_s = self._settings.timeout_s

    async def close(self) -> None:
        for _ in range(self._settings.pool_max):
            try:
                link = await asyncio.wait_for(self._slots.get(), self._settings.timeout_s)
            except TimeoutError:
                return
            if link is not None:
                await link.close()

    async def _slot(self) -> AsyncLink | None:
        if not self._slots.empty():  # a timer for nothing costs as much as the rest of this
            return self._slots.get_nowait()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return await self._slots.get()
        except TimeoutError:
            raise StoreUnavailable(busy(self._settings)) from None

    async def _make_ready(self) -> None:
        await self.run_alone(schema.ready(self._settings), patient=self._settings.migrate)

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[AsyncLink]:
        link = await self._take()
        try:
            yield link
        finally:
            self._give_back(link)

    async def _take(self) -> AsyncLink:
        link = await self._slot()
        if link is not None and link.lost_before == self._lost:
            return link
        try:
            if link is not None:
                await link.close()
            link = await AsyncLink.open(self._settings)
        except BaseException:
            self._slots.put_nowait(None)
            raise
        link.lost_before = self._lost
        return link

    def _give_back(self, link: AsyncLink) -> None:
        if link.closed:
            self._lost += 1
        self._slots.put_nowait(None if link.closed else link)


def busy(settings: Settings) -> str:
    return (
        f"{settings.shown}: all {settings.pool_max} connections are busy since {settings.timeout_s:g} s; raise pool_max"
    )
