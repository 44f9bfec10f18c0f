"""The async face. A call takes one of two routes to the file.

- At once (`turn`): the event loop itself does what waits neither for a lock nor for the disk: it looks, and with
  `synchronous=normal` it writes small transactions, whose commit only writes to memory.
- Batched: a thread waits for what has to be waited for. That is every write with `synchronous=full`, every large one,
  and whatever comes while another process is writing, the log is too long or the disk is slow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import get_ident
from typing import Any, TypeVar, assert_never, cast

from semel.core.effects import Effect, Read
from semel.core.outbox import checked_call
from semel.core.records import Key
from semel.errors import StoreError
from semel.runtime.deadline import find_due_s, shared_deadline
from semel.runtime.local import PerProcess
from semel.store import Clock, Counts, Filter, Migration, Page
from semel.stores.batch_face import CoalescedFace
from semel.stores.sql.migrations import printable
from semel.stores.sqlite.answers import UNSEEN, CallFailed, Pending, Replied, Reply
from semel.stores.sqlite.database import Database, migrate
from semel.stores.sqlite.outbox import look_for_messages, only_reads
from semel.stores.sqlite.schema import MIGRATIONS
from semel.stores.sqlite.scripts import Look, Purge, look_first
from semel.stores.sqlite.settings import SqliteSettings
from semel.stores.sqlite.store import PURGE_AT_ONCE, held
from semel.stores.sqlite.turn import FilePace, LoopTurn
from semel.stores.sqlite.writer import fail_all
from semel.stores.waiters import Change

T = TypeVar("T")
LOOK_FIRST_S, LOOK_LAST_S = 0.01, 0.1
"""How long a relay that waits for messages pauses between two looks at the file, first and later."""


def pauses_s(timeout_s: float) -> Iterator[float]:
    """The pauses between looks, until the time has run out."""
    deadline_s, pause_s = time.monotonic() + timeout_s, LOOK_FIRST_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(2 * pause_s, LOOK_LAST_S)


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
    def __init__(self, settings: SqliteSettings | str, *, clock: Clock | None = None) -> None:
        super().__init__()
        self._settings = SqliteSettings(settings) if isinstance(settings, str) else settings
        self._timeout_s, self._late = self._settings.timeout_s, self._settings.late
        self._database = PerProcess(lambda: Database(self._settings, clock))
        self._threads = PerProcess(Threads)
        self._opened: Database | None = None
        self._last_turn: LoopTurn | None = None
        self._pace = FilePace()
        self._seen: object = None
        """The version of the file when a relay was woken last."""

    def _lane(self, call: Effect[Any]) -> object:
        return "read" if isinstance(call, (Read, Look)) else "write"

    async def _call(self, call: Effect[T]) -> T:
        turn = self._find_turn()
        reply = UNSEEN if turn is None else await turn.ask(call)
        match reply:
            case Replied(value):
                answer: T = value
                return answer
            case CallFailed(error):
                raise error
            case Pending():
                pass
            case _:
                assert_never(reply)
        looks = look_first(call) if reply is UNSEEN else None
        if looks is None:
            return await super()._call(call)
        with shared_deadline(find_due_s(asyncio.get_running_loop().time(), self._settings.timeout_s)):
            found: T | None = await super()._call(looks)  # a replay must not wait for the write lock
            return await super()._call(call) if found is None else found

    def _find_turn(self) -> LoopTurn | None:
        """The loop's turn, if the file is open in this process and answers at once."""
        turn, opened = self._last_turn, self._opened
        if opened is None:
            return None
        loop = asyncio.get_running_loop()
        if turn is None or turn.loop is not loop or turn.database is not opened:
            turn = self._last_turn = LoopTurn(loop, opened, self._pace, self._orphaned)
        is_frozen = opened.connections.frozen  # the process is being forked, and every call has to wait
        return None if is_frozen or (self._pace.resting and not self._pace.is_good()) else turn

    async def _send(self, calls: Sequence[Effect[Any]]) -> Sequence[Any]:
        threads, reading = self._threads.get(), self._lane(calls[0]) == "read"

        def answer() -> Sequence[Reply]:
            try:
                database = self._database.get()  # it may have to be opened first, which is no work for the loop
            except StoreError as error:
                return fail_all(error, len(calls))
            self._opened = database
            if reading:
                return database.look([call.claim if isinstance(call, Look) else call for call in calls])
            return database.writer.run(calls)

        thread = threads.read if reading else threads.write
        return list(map(_unwrap, await asyncio.get_running_loop().run_in_executor(thread, answer)))

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
            turn = self._find_turn()
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

    async def outbox(self, call: Effect[T]) -> T:
        checked = checked_call(call)
        if only_reads(checked):
            return await self._inspect(lambda: self._database.get().ask_outbox(checked))
        if (looks := look_for_messages(checked)) is not None:
            found: Any = await self._read(lambda: self._database.get().ask_outbox(looks))
            if found is not None:
                return cast(T, found)
        return await self._call(checked)

    async def wait_for_messages(self, timeout_ms: int) -> None:
        """Messages are added on other connections, so this looks at the file from time to time."""
        with suppress(StoreError):  # awake early: the next question is answered with this error
            for pause_s in pauses_s(timeout_ms / 1000):
                await asyncio.sleep(pause_s)
                version = await self._read(lambda: self._database.get().outbox_version())
                if version != self._seen:
                    self._seen = version
                    return

    async def _read(self, ask: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads.get().read, ask)

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


def _unwrap(reply: Reply) -> Any:
    """The reply as a batcher takes it: a failure is an exception, and None says that it is not enough to look."""
    match reply:
        case Replied(value):
            return value
        case CallFailed(error):
            return error
        case Pending():
            return None
