"""Waiting for a key that another process holds.

NOTIFY takes a lock that all committing transactions share, so it is used only for keys with waiters. A waiter marks the
row, and whatever ends the owner's hold on a marked row tells its digest. One connection for each process (or event
loop) listens, only while there are waiters. They also look from time to time, because a pooler lets no notification
through and a listening connection can be lost.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress

import psycopg

from semel.core.records import Key
from semel.errors import StoreError
from semel.stores.postgres.queries import CHANNEL
from semel.stores.postgres.sessions import AsyncPostgresLink, PostgresLink
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.sql.digests import digest_of
from semel.stores.waiters import AsyncWaiters, Waiters

LOOK_FIRST_S, LOOK_LAST_S = 0.1, 0.5
"""How long the first and the later pauses between two looks are."""
READY_S = 0.5
"""How long a first waiter waits for the listening connection before it goes on without."""
IDLE_S = 1.0
"""How long the listening connection stays when there are no waiters."""
LOST = (psycopg.Error, StoreError, OSError, TimeoutError)


def pauses_s(timeout_s: float) -> Iterator[float]:
    """The pauses between looks, until the time has run out."""
    deadline = time.monotonic() + timeout_s
    pause_s = LOOK_FIRST_S
    while (left_s := deadline - time.monotonic()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(2 * pause_s, LOOK_LAST_S)


class PostgresWatch:
    """For threads of one process."""

    def __init__(self, settings: PostgresSettings) -> None:
        self.waiters = Waiters()
        self._settings = settings
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._deaf = False  # behind a pooler nothing is heard

    def wait(self, key: Key, timeout_s: float, held: Callable[[], bool]) -> bool:
        """Sleep until `held` says no, or a notification says that it would. `held` also marks the row."""
        with self.waiters.registered(key) as changed:
            for pause_s in pauses_s(timeout_s):
                self._listen()
                if not held() or changed.wait(pause_s):
                    return True
            return False

    def _listen(self) -> None:
        with self._lock:
            if self._thread is None and not self._deaf:
                self._ready = threading.Event()
                thread = threading.Thread(target=self._run, name="semel-listen", daemon=True)
                thread.start()  # first: without a thread the next one must try again
                self._thread = thread
        self._ready.wait(READY_S)

    def _run(self) -> None:
        with suppress(*LOST), closing(PostgresLink.open(self._settings)) as link:
            self._deaf = not link.direct
            if not self._deaf:
                link.execute(f"LISTEN {CHANNEL}")
                self._ready.set()
                self._hear(link)
        with self._lock:
            self._thread = None
            self._ready.set()

    def _hear(self, link: PostgresLink) -> None:
        while True:
            for notify in link.notifies(timeout=IDLE_S):
                wake(self.waiters, notify.payload)
            with self._lock:
                if not self.waiters.keys():
                    self._thread = None  # under the lock: who comes now starts another one
                    return


class AsyncWatch:
    """For tasks of one event loop."""

    def __init__(self, settings: PostgresSettings) -> None:
        self.waiters = AsyncWaiters()
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._deaf = False

    async def wait(self, key: Key, timeout_s: float, held: Callable[[], Awaitable[bool]]) -> bool:
        with self.waiters.registered(key) as changed:
            for pause_s in pauses_s(timeout_s):
                await self._listen()
                if not await held() or await changed.wait(pause_s):
                    return True
            return False

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _listen(self) -> None:
        if self._task is None and not self._deaf:
            self._ready = asyncio.Event()
            self._task = asyncio.create_task(self._run())
        await _within(self._ready, READY_S)

    async def _run(self) -> None:
        try:
            with suppress(*LOST):
                async with await AsyncPostgresLink.open(self._settings) as link:
                    self._deaf = not link.direct
                    if not self._deaf:
                        await link.execute(f"LISTEN {CHANNEL}")
                        self._ready.set()
                        await self._hear(link)
        finally:
            self._task = None
            self._ready.set()

    async def _hear(self, link: AsyncPostgresLink) -> None:
        while True:
            async for notify in link.notifies(timeout=IDLE_S):
                wake(self.waiters, notify.payload)
            if not self.waiters.keys():
                self._task = None  # before the connection is closed: who comes meanwhile starts another one
                return


async def _within(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def wake(waiters: Waiters | AsyncWaiters, digest: str) -> None:
    for key in waiters.keys():  # noqa: SIM118, it is not a dict
        if digest_of(key).hex() == digest:
            waiters.wake(key)
