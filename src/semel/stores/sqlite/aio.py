"""The async face: the loop itself asks what is answered at once, and threads wait for whatever has to be waited for.

At once is what neither waits for a lock nor for the disk: reading, and with `synchronous=normal` a small transaction,
whose commit only writes to memory. Everything else goes to a thread, in batches: when another process is writing, when
the log is too long or the disk too slow for it, when much is to be written, and every commit with `synchronous=full`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import get_ident
from typing import Any, TypeVar, cast

from semel.core.effects import Claim, Effect, Read
from semel.core.records import Key
from semel.errors import StoreError
from semel.runtime.deadline import find_due_s, shared_deadline
from semel.runtime.local import PerProcess
from semel.store import Clock, Counts, Filter, Migration, Page
from semel.stores.coalesced import CoalescedFace
from semel.stores.sql.migrations import printable
from semel.stores.sqlite.at_once import Pace, Turn
from semel.stores.sqlite.database import Begun, Database, migrate
from semel.stores.sqlite.quick import LATER, UNSEEN
from semel.stores.sqlite.schema import MIGRATIONS
from semel.stores.sqlite.scripts import Look, Purge, look_first
from semel.stores.sqlite.settings import Settings
from semel.stores.sqlite.store import PURGE_AT_ONCE, held
from semel.stores.sqlite.writer import failures, told, weight
from semel.stores.waiters import Change

T = TypeVar("T")


class Threads:
    """One process's, started when first used. Operators' questions have their own: a long count delays no claim."""

    def __init__(self) -> None:
        self.write = ThreadPoolExecutor(1, "semel-sqlite-write")
        self.commit = ThreadPoolExecutor(1, "semel-sqlite-commit")  # who waits to write must not stand before it
        self.read = ThreadPoolExecutor(1, "semel-sqlite-read")
        self.inspect = ThreadPoolExecutor(1, "semel-sqlite-inspect")

    def close(self) -> None:
        for executor in (self.write, self.commit, self.read, self.inspect):
            executor.shutdown(wait=False)


class AsyncSqliteStore(CoalescedFace):
    def __init__(self, settings: Settings | str, *, clock: Clock | None = None) -> None:
        super().__init__()
        self._settings = Settings(settings) if isinstance(settings, str) else settings
        self._timeout_s, self._late = self._settings.timeout_s, self._settings.late
        self._prompt = self._settings.synchronous == "normal"  # only then does no commit wait for the disk
        self._database = PerProcess(lambda: Database(self._settings, clock))
        self._threads = PerProcess(Threads)
        self._opened: Database | None = None
        self._last_turn: Turn | None = None
        self._pace = Pace()
        self._writing = 0

    def _lane(self, call: Effect[Any]) -> object:
        return "read" if isinstance(call, (Read, Look)) else "write"

    async def _call(self, call: Effect[T]) -> T:
        turn = self._turn()
        if turn is None:
            return await self._through_threads(call)
        kind, reply = type(call), cast(Any, LATER)
        if not turn.crowded or kind is Read:
            if turn.enough():
                await asyncio.sleep(0)
            reply = turn.at_once(call)
        if reply is LATER and turn.crowded and (self._prompt or kind is Claim):
            asked = turn.together(call)
            try:
                reply = await asked
            except asyncio.CancelledError:
                if asked.done() and not asked.cancelled():  # asked, but cancelled before the answer could be looked at
                    self._orphaned(call, asked.result())
                raise
        if reply is LATER:
            return await super()._call(call)
        if reply is UNSEEN:
            return await self._through_threads(call)
        shown: T = told(reply)
        return shown

    async def _through_threads(self, call: Effect[T]) -> T:
        if self._lane(call) == "read":
            return await super()._call(call)
        # While the writer is busy, a claim asks the reader first. A lone claim is not sent through two threads.
        if self._writing and (looks := look_first(call)) is not None:
            with shared_deadline(find_due_s(asyncio.get_running_loop().time(), self._settings.timeout_s)):
                found: T | None = await super()._call(looks)
                return await self._write(call) if found is None else found
        return await self._write(call)

    async def _write(self, call: Effect[T]) -> T:
        self._writing += 1
        try:
            return await super()._call(call)
        finally:
            self._writing -= 1

    def _turn(self) -> Turn | None:
        """The loop's turn, if the file is open in this process and answers at once."""
        turn, opened = self._last_turn, self._opened
        if opened is None:
            return None
        loop = asyncio.get_running_loop()
        if turn is None or turn.loop is not loop or turn.database is not opened:
            turn = self._last_turn = Turn(loop, opened, self._pace, prompt=self._prompt)
        return None if opened.frozen or (self._pace.resting and not self._pace.good()) else turn

    async def _send(self, calls: Sequence[Effect[Any]]) -> Sequence[Any]:
        if self._lane(calls[0]) == "read":
            return await self._in_thread(self._threads.get().read, calls, Database.read)
        self._writing += 1
        try:
            if self._prompt and (replies := self._free_again(calls)) is not None:
                return replies
            if (begun := self._begun(calls)) is not None and await self._committed(begun):
                return begun.replies
            return await self._in_thread(self._threads.get().write, calls, Database.write)
        finally:
            self._writing -= 1

    def _free_again(self, calls: Sequence[Effect[Any]]) -> list[Any] | None:
        """What the loop refused, as a rule because somebody else was writing. If nobody is now, it can after all."""
        if (turn := self._turn()) is None or not turn.database.writer.may_write_at_once(sum(map(weight, calls))):
            return None
        replies = self._pace.timed(turn.database.at_once, calls, writing=True)
        return None if any(reply is LATER or reply is UNSEEN for reply in replies) else replies

    def _begun(self, calls: Sequence[Effect[Any]]) -> Begun | None:
        """Written by the loop, where only the commit has to wait for the disk: a thread would take twice as long."""
        if self._prompt or (turn := self._turn()) is None:
            return None  # with a prompt commit, what comes here was refused by the loop already
        return self._pace.timed(turn.database.begin, calls)

    async def _committed(self, begun: Begun) -> bool:
        try:
            committing = self._threads.get().commit.submit(begun.commit)
        except BaseException:
            begun.undo()
            raise
        # Whoever stops waiting for it must not stop it: nobody else can write until it has ended.
        return await asyncio.shield(asyncio.wrap_future(committing))

    async def _in_thread(
        self, thread: ThreadPoolExecutor, calls: Sequence[Effect[Any]], ask: Callable[..., list[Any]]
    ) -> list[Any]:
        def answer() -> list[Any]:
            try:
                database = self._database.get()  # it may have to be opened first, which is no work for the loop
            except StoreError as error:
                return list(failures(error, len(calls)))
            self._opened = database
            return ask(database, calls)

        return await asyncio.get_running_loop().run_in_executor(thread, answer)

    async def _inspect(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads.get().inspect, ask)

    async def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        changed = Change()
        loop, here = asyncio.get_running_loop(), get_ident()

        def wake() -> None:
            if get_ident() == here:  # without a detour by way of the loop's own socket
                changed.set()
                return
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(changed.set)

        try:
            turn = self._turn()
            database = None if turn is None else turn.database
            if database is None:
                database = await loop.run_in_executor(self._threads.get().read, self._database.get)
            with database.watch.watching(key, owner, wake):
                return not held(await self.get(key), owner) or await changed.wait(timeout_ms / 1000)
        except StoreError:
            return True  # awake early: the next question is answered with this error

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
        if (turn := self._last_turn) is not None and turn.loop is asyncio.get_running_loop():
            await turn.drain()
        await self._drain()
        self._opened = self._last_turn = None
        if (database := self._database.take()) is not None:
            await self._inspect(database.close)
        if (threads := self._threads.take()) is not None:
            threads.close()
