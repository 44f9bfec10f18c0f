"""The async face: batches go to a thread that writes and one that reads, and the loop is never blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from semel.clock import wall_ms
from semel.core.effects import Effect, Read
from semel.core.records import Key
from semel.errors import StoreError
from semel.store import Clock, Counts, Filter, Migration, Page
from semel.stores.coalesced import CoalescedFace
from semel.stores.local import PerProcess
from semel.stores.sql.migrations import printable
from semel.stores.sqlite.database import Database, migrate
from semel.stores.sqlite.schema import MIGRATIONS
from semel.stores.sqlite.scripts import Look, Purge, look_first
from semel.stores.sqlite.settings import Settings
from semel.stores.sqlite.store import PURGE_AT_ONCE, held
from semel.stores.sqlite.writer import failures

T = TypeVar("T")


class Threads:
    """One process's, started when first used. Operators' questions have their own: a long count delays no claim."""

    def __init__(self) -> None:
        self.write = ThreadPoolExecutor(1, "semel-sqlite-write")
        self.read = ThreadPoolExecutor(1, "semel-sqlite-read")
        self.inspect = ThreadPoolExecutor(1, "semel-sqlite-inspect")

    def close(self) -> None:
        for executor in (self.write, self.read, self.inspect):
            executor.shutdown(wait=False)


class AsyncSqliteStore(CoalescedFace):
    def __init__(self, settings: Settings | str, *, clock: Clock = wall_ms) -> None:
        super().__init__()
        self._settings = Settings(settings) if isinstance(settings, str) else settings
        self._database = PerProcess(lambda: Database(self._settings, clock))
        self._threads = PerProcess(Threads)
        self._writing = 0

    def _lane(self, call: Effect[Any]) -> object:
        return "read" if isinstance(call, (Read, Look)) else "write"

    async def _call(self, call: Effect[T]) -> T:
        if self._lane(call) == "read":
            return await super()._call(call)
        # While the writer is busy, a claim asks the reader first. A lone claim is not sent through two threads.
        if (
            self._writing
            and (look := look_first(call)) is not None
            and (found := await super()._call(look)) is not None
        ):
            reply: T = found
            return reply
        self._writing += 1
        try:
            return await super()._call(call)
        finally:
            self._writing -= 1

    async def _send(self, calls: Sequence[Effect[Any]]) -> Sequence[Any]:
        reads = self._lane(calls[0]) == "read"
        threads = self._threads.get()

        def answer() -> list[Any]:
            try:
                database = self._database.get()  # it may have to be opened first, which is no work for the loop
            except StoreError as error:
                return list(failures(error, len(calls)))
            return database.read(calls) if reads else database.write(calls)

        return await asyncio.get_running_loop().run_in_executor(threads.read if reads else threads.write, answer)

    async def _inspect(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads.get().inspect, ask)

    async def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(changed.set)

        try:
            database = await loop.run_in_executor(self._threads.get().read, self._database.get)
            with database.watch.watching(key, owner, wake):
                if held(await self.get(key), owner):
                    await asyncio.wait_for(changed.wait(), timeout_ms / 1000)
        except TimeoutError:
            return False
        except StoreError:
            return True  # awake early: the next question is answered with this error
        return True

    async def purge(self, *, limit: int) -> int:
        gone = 0
        while gone < limit:
            size = min(limit - gone, PURGE_AT_ONCE)
            found = await self._call(Purge(size))
            gone += found
            if found < size:
                break
        return gone

    async def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        return await self._inspect(lambda: self._database.get().scan(filter, cursor, limit))

    async def counts(self) -> Counts:
        return await self._inspect(lambda: self._database.get().counts())

    def migrations(self) -> Sequence[Migration]:
        return printable(MIGRATIONS)

    async def migrate(self) -> Sequence[int]:
        return await self._inspect(lambda: migrate(self._settings))

    async def close(self) -> None:
        await self._drain()
        if (database := self._database.take()) is not None:
            await self._inspect(database.close)
        if (threads := self._threads.take()) is not None:
            threads.close()
