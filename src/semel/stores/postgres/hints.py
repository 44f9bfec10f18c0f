"""Hints that messages were added: one connection for each event loop listens while a relay waits.

A hint may be lost: behind a pooler, with the connection, or before it listens. Then the relay sleeps for as long as it
wanted to, and asks the store.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from semel.stores.postgres.sessions import AsyncPostgresLink
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.postgres.transaction_queries import CHANNEL
from semel.stores.postgres.watch import LOST

GATHER_S = 0.005
"""Messages that are added together are taken together, and a busy service does not wake a relay for each of them."""
IDLE_S = 1.0
KEEP_S = 30.0
"""How long the listening connection stays after a relay has waited last: it may be publishing."""
RETRY_S = 1.0


class MessageHints:
    """For the tasks of one event loop."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._hint = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0
        self._needed_until_s = 0.0
        self._retry_at_s = 0.0
        self._deaf = False  # behind a pooler nothing is heard

    async def wait(self, timeout_s: float) -> None:
        """Sleep until a hint comes, or has come since the last one was heeded."""
        self._listen()
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self._hint.wait()
                await asyncio.sleep(GATHER_S)
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
            self._needed_until_s = time.monotonic() + KEEP_S
        self._hint.clear()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _listen(self) -> None:
        if self._task is None and not self._deaf and time.monotonic() >= self._retry_at_s:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            with suppress(*LOST):
                async with await AsyncPostgresLink.open(self._settings) as link:
                    self._deaf = not link.direct
                    if not self._deaf:
                        await link.execute(f"LISTEN {CHANNEL}")
                        self._hint.set()  # what was added before was not heard
                        await self._hear(link)
        finally:
            self._task = None
            self._retry_at_s = time.monotonic() + RETRY_S

    async def _hear(self, link: AsyncPostgresLink) -> None:
        while self._waiting or time.monotonic() < self._needed_until_s:
            async for _ in link.notifies(timeout=IDLE_S):
                self._hint.set()
