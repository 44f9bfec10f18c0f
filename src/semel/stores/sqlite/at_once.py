"""When the event loop itself may ask the file: what takes microseconds is not worth two changes of threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from semel.core.effects import Effect
from semel.stores.sqlite.database import Database
from semel.stores.sqlite.quick import UNSEEN
from semel.stores.sqlite.writer import AT_ONCE_MAX

P = ParamSpec("P")
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
        self.resting = False

    def good(self) -> bool:
        """Only who finds it `resting` has to ask: this looks at the clock."""
        self.resting = self._seconds() < self._good_from_s
        return not self.resting

    def timed(self, ask: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        began_s = self._seconds()
        try:
            return ask(*args, **options)
        finally:
            ended_s = self._seconds()
            self._slow = self._slow + 1 if ended_s - began_s > SLOW_S else 0
            if self._slow == SLOW_MAX:
                self._slow, self._good_from_s, self.resting = 0, ended_s + REST_S, True


class Turn:
    """The current pass of an event loop, and who has called in it.

    A task that has the pass to itself is answered at once, and nobody loses by that. What several ask for in one pass
    is better asked for together, and so is what comes after it, until a batch is no more than one call again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, database: Database, pace: Pace, *, prompt: bool) -> None:
        self.loop = loop
        self.database = database
        self.crowded = False
        self._pace = pace
        self._prompt = prompt
        self._waiting: list[tuple[Effect[Any], asyncio.Future[Any]]] = []
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

    def at_once(self, call: Effect[Any]) -> Any:
        """Ask now; when others have called, too, only look."""
        [reply] = self._pace.timed(self.database.at_once, [call], writing=self._prompt and not self.crowded)
        return reply

    def together(self, call: Effect[Any]) -> asyncio.Future[Any]:
        """Ask with the others, at the end of this pass."""
        future: asyncio.Future[Any] = self.loop.create_future()
        if not self._waiting:
            self.loop.call_soon(self._ask_together)
        self._waiting.append((call, future))
        return future

    async def drain(self) -> None:
        """Wait until all have their reply, and those whom it sends elsewhere are there."""
        if self._waiting:
            await asyncio.wait([future for _, future in self._waiting])

    def _over(self) -> None:
        self._task = None

    def _ask_together(self) -> None:
        self.crowded = len(self._waiting) > 1
        asking, self._waiting = self._waiting[:AT_ONCE_MAX], self._waiting[AT_ONCE_MAX:]
        if self._waiting:
            self.loop.call_soon(self._ask_together)  # after those who have waited for this pass
        asking = [member for member in asking if not member[1].cancelled()]
        replies: list[Any] = [UNSEEN] * len(asking)
        try:
            if asking:
                calls = [call for call, _ in asking]
                replies = self._pace.timed(self.database.at_once, calls, writing=self._prompt)
        finally:  # whoever interrupts this, nobody waits for ever
            for (_, future), reply in zip(asking, replies, strict=True):
                future.set_result(reply)
