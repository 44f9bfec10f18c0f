"""Tasks that outlive their callers: begun work goes on when its caller leaves, and until the server stops."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context
from threading import Semaphore
from typing import Any, TypeVar

T = TypeVar("T")
Ended = Callable[[asyncio.Task[Any]], None]
logger = logging.getLogger("semel")
DETACHED_MAX = 1_000
"""How many accepted operations may run at once without their callers."""
ABANDONING_MAX = 1_000
DRAIN_S = 10.0
"""How long a server that stops waits for work whose callers are gone."""


class Tasks:
    """The tasks of one middleware, in whatever event loops it is used."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self.forget: Callable[[asyncio.Task[Any]], None] = self._running.discard
        self._detached: set[asyncio.Task[Any]] = set()
        self._abandoning = Semaphore(ABANDONING_MAX)

    def spawn(
        self,
        work: Coroutine[Any, Any, T],
        context: Context | None = None,
        *,
        ended: Ended | None = None,
        at_once: bool = False,
    ) -> asyncio.Task[T]:
        """Run `work` in a task that nobody's cancellation reaches, and keep it until it ends.

        `ended` is called then, and must call `forget`. `at_once` begins it in this very step of the loop, where Python
        can; it may have ended on return.
        """
        loop = asyncio.get_running_loop()
        if at_once and sys.version_info >= (3, 12) and loop.get_task_factory() is None:
            task = asyncio.Task(work, loop=loop, context=context, eager_start=True)
        else:
            task = loop.create_task(work, context=context)
        if task.done():
            if ended is not None:
                ended(task)
            return task
        self._running.add(task)
        task.add_done_callback(self.forget if ended is None else ended)
        return task

    def may_abandon(self) -> bool:
        """Whether one more claim may be given back at once; call `abandoned` when that has ended.

        Above the bound a claim is left to lapse: its key is unknown then, which is safe.
        """
        return self._abandoning.acquire(blocking=False)

    def abandoned(self, _: object) -> None:
        self._abandoning.release()

    def may_detach(self, work: asyncio.Task[Any]) -> bool:
        """Whether one more operation may go on without its caller; else the caller waits as usual."""
        if len(self._detached) >= DETACHED_MAX:
            return False
        self._detached.add(work)
        work.add_done_callback(self._detached.discard)
        return True

    async def drain(self) -> None:
        """Let begun work end, within a bound."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + DRAIN_S
        while mine := {task for task in self._running if task.get_loop() is loop}:
            left_s = until_s - loop.time()
            if left_s <= 0:
                logger.error("%d operations were cut off because the server stops: their outcome is unknown", len(mine))
                break
            await asyncio.wait(mine, timeout=left_s)


def report(task: asyncio.Task[Any]) -> None:
    """Log the failure of work that nobody waits for."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("an operation failed after its caller had left", exc_info=error)
