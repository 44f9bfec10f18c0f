"""Tasks that outlive their callers: work that has begun goes on when its caller leaves, until the server stops."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")
Ended = Callable[[asyncio.Task[Any]], None]
logger = logging.getLogger("semel")
DETACHED_MAX = 1_000
"""How many accepted operations may run at once without their callers."""
ABANDONING_MAX = 1_000
DRAIN_S = 10.0
"""How long a server that stops waits for work whose callers are gone."""
ABANDON_S = 1.0
"""How long it waits for the release of claims of which nothing ran. A store that is away may take any time."""


class Tasks:
    """The tasks of one middleware, in whatever event loops it is used."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self.forget: Callable[[asyncio.Task[Any]], None] = self._running.discard
        self._detached: set[asyncio.Task[Any]] = set()
        self._abandoning: set[asyncio.Task[Any]] = set()

    def spawn(
        self,
        work: Coroutine[Any, Any, T],
        context: Context | None = None,
        *,
        ended: Ended | None = None,
        at_once: bool = False,
    ) -> asyncio.Task[T]:
        """Run `work` in a task that no caller's cancellation reaches, and keep it until it ends.

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

    def abandon(self, give_back: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Release a claim of which nothing ran, in the background; False when too many are being released already.

        Above that bound a claim is left to lapse: its key is then unknown, which is safe.
        """
        if len(self._abandoning) >= ABANDONING_MAX:
            return False
        task = asyncio.get_running_loop().create_task(give_back())
        self._abandoning.add(task)
        task.add_done_callback(self._abandoning.discard)
        return True

    def may_detach(self, work: asyncio.Task[Any]) -> bool:
        """Whether one more operation may go on without its caller; else the caller waits as usual."""
        if len(self._detached) >= DETACHED_MAX:
            return False
        self._detached.add(work)
        work.add_done_callback(self._detached.discard)
        return True

    async def drain(self) -> None:
        """Let begun work end, within a bound. Then release claims of which nothing ran, within a shorter one."""
        if left := await _wait_for(self._running, DRAIN_S):
            logger.error("%d operations were cut off because the server stops: their outcome is unknown", left)
        if left := await _wait_for(self._abandoning, ABANDON_S):
            logger.warning(
                "%d claims could not be given back before the server stopped: nothing ran, and those that the store "
                "has granted are unknown when their leases lapse",
                left,
            )


async def _wait_for(tasks: set[asyncio.Task[Any]], within_s: float) -> int:
    """Wait for the `tasks` of this event loop, also for new ones, and return how many are left."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + within_s
    while mine := {task for task in list(tasks) if task.get_loop() is loop}:
        left_s = until_s - loop.time()
        if left_s <= 0:
            return len(mine)
        await asyncio.wait(mine, timeout=left_s)
    return 0


def report(task: asyncio.Task[Any]) -> None:
    """Log the failure of work whose caller has left."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("an operation failed after its caller had left", exc_info=error)
