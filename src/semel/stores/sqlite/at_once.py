"""When the event loop itself may ask the file: what takes microseconds is not worth two changes of threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from semel.batch import Batcher

C = TypeVar("C")
T = TypeVar("T")
SLOW_S = 0.01
SLOW_MAX = 2
REST_S = 1.0
CALLS_MAX = 16
"""So many calls of one task are answered before the others on the loop have their turn."""


class Pace:
    """Whether the file answers fast enough. After two slow answers in a row it does not, and threads ask for a while.

    One alone says nothing: on a busy machine anybody may be kept from running for so long.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._slow = 0
        self._good_from_s = 0.0

    def good(self) -> bool:
        return self._seconds() >= self._good_from_s

    def timed(self, ask: Callable[[C], T], call: C) -> T:
        began_s = self._seconds()
        try:
            return ask(call)
        finally:
            ended_s = self._seconds()
            self._slow = self._slow + 1 if ended_s - began_s > SLOW_S else 0
            if self._slow == SLOW_MAX:
                self._slow, self._good_from_s = 0, ended_s + REST_S


class Turn:
    """The current pass of an event loop, and who has called in it.

    A task that has the pass to itself is answered at once, and nobody loses by that. What several ask for in one pass
    is better written together, and so is what comes after it, until a batch is no more than one call again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, writes: Batcher[Any, Any]) -> None:
        self.loop = loop
        self.writes = writes
        self.crowded = False
        self._task: asyncio.Task[Any] | None = None
        self._calls = 0

    def enough(self) -> bool:
        """Count a call. True when its task has called so often that it must let others run first."""
        task = asyncio.current_task(self.loop)
        if task is not self._task:
            if self._task is None:
                self.loop.call_soon(self._over)
            else:
                self.crowded = True
            self._task, self._calls = task, 0
        self._calls += 1
        return self._calls > CALLS_MAX

    def _over(self) -> None:
        self._task = None
