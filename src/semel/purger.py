"""Purging in the background: every process of a service may run a purger, and together they purge what one would.

No leader is elected. Each purger looks now and then, at a time of its own (the pause is spread by half of it both
ways), and takes small batches; the second one finds nothing to do. Purges neither block each other nor live traffic:
PostgreSQL skips rows that are locked, SQLite and Redis take one short step at a time.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from semel.errors import StoreError
from semel.store import AsyncStore, Store

__all__ = ["AsyncPurger", "Purger"]

logger = logging.getLogger("semel")
OnPurged = Callable[[int], None]
BETWEEN_BATCHES_S = 0.1


class PurgePace:
    """When to purge next. Decides for both faces; `random_` gives numbers from 0 to 1."""

    def __init__(self, every: timedelta | float, batch: int, random_: Callable[[], float] = random.random) -> None:
        self._every_s = every.total_seconds() if isinstance(every, timedelta) else float(every)
        if not 0 < self._every_s <= 86_400:
            raise ValueError(f"every must be more than 0 and at most a day, not {self._every_s:g} s")
        if not 1 <= batch <= 10_000:
            raise ValueError(f"batch must be between 1 and 10000, not {batch}")
        self.batch = batch
        self._random = random_

    def pause_s(self, purged: int) -> float:
        """How long to pause after a batch: shortly while there is more, else until it is worth looking again."""
        spread = 0.5 + self._random()
        return spread * (min(BETWEEN_BATCHES_S, self._every_s) if purged >= self.batch else self._every_s)


class Purger:
    """Deletes records past retention, from a thread, between `start` and `close`, or in a `with` block.

    ```python
    import semel
    from semel.purger import Purger

    store = semel.open_store("sqlite:///semel.db")
    with Purger(store, every=60):
        ...  # serve
    ```

    Any number of processes may purge one store. It deletes at most `batch` records at a time, and goes on at once while
    there are more. `on_purged` is told how many.
    """

    def __init__(
        self,
        store: Store,
        *,
        every: timedelta | float = timedelta(minutes=1),
        batch: int = 500,
        on_purged: OnPurged | None = None,
    ) -> None:
        self._store, self._pace, self._on_purged = store, PurgePace(every, batch), on_purged
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="semel-purger", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop, after the batch that is under way."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Purger:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _run(self) -> None:
        purged = 0
        while not self._stop.wait(self._pace.pause_s(purged)):
            try:
                purged = self._store.purge(limit=self._pace.batch)
                _tell(self._on_purged, purged)
            except Exception as error:
                purged = 0
                _report(error)


class AsyncPurger:
    """A `Purger` as a task of the running event loop: `async with AsyncPurger(store): …`, for example in a lifespan."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        every: timedelta | float = timedelta(minutes=1),
        batch: int = 500,
        on_purged: OnPurged | None = None,
    ) -> None:
        self._store, self._pace, self._on_purged = store, PurgePace(every, batch), on_purged
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task, unless it runs."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop. A batch that is under way is cancelled: what it has not purged stays for the next time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def __aenter__(self) -> AsyncPurger:
        self.start()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def _run(self) -> None:
        purged = 0
        while True:
            await asyncio.sleep(self._pace.pause_s(purged))
            try:
                purged = await self._store.purge(limit=self._pace.batch)
                _tell(self._on_purged, purged)
            except Exception as error:
                purged = 0
                _report(error)


def _tell(on_purged: OnPurged | None, purged: int) -> None:
    if on_purged is not None and purged:
        on_purged(purged)


def _report(error: Exception) -> None:
    """Log the error and go on: a store that is away comes back, and the records are purged later."""
    if isinstance(error, StoreError):
        logger.warning("purging failed: %s", error)
    else:
        logger.exception("purging failed", exc_info=error)
