"""The first route of a call: the event loop asks the file itself, because two changes of threads take longer than that.

A task that has a pass of the loop to itself is answered at once. Calls of several tasks in one pass are answered
together at its end, in one transaction, and so are those that follow, until a batch is a single call again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from semel.core.effects import Claim, Effect, Read
from semel.stores.sqlite.answers import UNSEEN, UNWRITTEN, Replied, Reply
from semel.stores.sqlite.database import Database
from semel.stores.sqlite.writer import AT_ONCE_MAX

P = ParamSpec("P")
T = TypeVar("T")
SLOW_S = 0.01
SLOW_MAX = 2
REST_S = 1.0
CALLS_MAX = 16
"""So many calls of one task are answered before the others on the loop have their turn."""


class FilePace:
    """Whether the file answers fast enough. After two slow answers in a row it does not, and threads ask for a while.

    A single slow answer says nothing: on a busy machine any thread may be kept from running for so long.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._slow = 0
        self._good_from_s = 0.0
        self.resting = False

    def is_good(self) -> bool:
        """Ask only while it is `resting`: this looks at the clock."""
        self.resting = self._seconds() < self._good_from_s
        return not self.resting

    def measure(self, ask: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        began_s = self._seconds()
        try:
            return ask(*args, **options)
        finally:
            ended_s = self._seconds()
            self._slow = self._slow + 1 if ended_s - began_s > SLOW_S else 0
            if self._slow == SLOW_MAX:
                self._slow, self._good_from_s, self.resting = 0, ended_s + REST_S, True


class LoopTurn:
    """The current pass of one event loop on one open file, and the tasks that have called in it.

    `orphaned` is told of the call of a task that was cancelled between the answer and its next step.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        database: Database,
        pace: FilePace,
        orphaned: Callable[[Effect[Any], object], None],
    ) -> None:
        self.loop = loop
        self.database = database
        self.crowded = False
        self._pace = pace
        self._orphaned = orphaned
        self._waiting: list[tuple[Effect[Any], asyncio.Future[Reply]]] = []
        self._task: asyncio.Task[Any] | None = None
        self._calls = 0

    async def ask(self, call: Effect[Any]) -> Reply:
        """Answer `call` if that waits neither for a lock nor for the disk."""
        if not (self.database.commits_at_once or isinstance(call, (Claim, Read))):
            return UNWRITTEN
        if not self.crowded and self._count_call() > CALLS_MAX:
            await asyncio.sleep(0)
        if not self.crowded:
            [reply] = self._pace.measure(self.database.answer_at_once, [call])
            return reply
        answer = self._ask_with_others(call)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                reply = answer.result()
                self._orphaned(call, reply.value if isinstance(reply, Replied) else reply)
            raise

    async def drain(self) -> None:
        """Wait until all calls have their reply, and those that are left to threads are there."""
        if self._waiting:
            await asyncio.wait([future for _, future in self._waiting])

    def _count_call(self) -> int:
        """How many calls the current task has made in this pass."""
        task = asyncio.current_task(self.loop)
        if task is not self._task:
            if self._task is None:
                self.loop.call_soon(self._end_pass)
            else:
                self.crowded = True
            self._task, self._calls = task, 0
        self._calls += 1
        return self._calls

    def _end_pass(self) -> None:
        self._task = None

    def _ask_with_others(self, call: Effect[Any]) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = self.loop.create_future()
        if not self._waiting:
            self.loop.call_soon(self._answer_waiting)
        self._waiting.append((call, future))
        return future

    def _answer_waiting(self) -> None:
        self.crowded = len(self._waiting) > 1
        asking, self._waiting = self._waiting[:AT_ONCE_MAX], self._waiting[AT_ONCE_MAX:]
        if self._waiting:
            self.loop.call_soon(self._answer_waiting)  # after the tasks that have waited for this pass
        asking = [member for member in asking if not member[1].cancelled()]
        replies: list[Reply] = [UNSEEN] * len(asking)
        try:
            if asking:
                replies = self._pace.measure(self.database.answer_at_once, [call for call, _ in asking])
        finally:  # an interrupt must leave no task waiting for ever
            for (_, future), reply in zip(asking, replies, strict=True):
                future.set_result(reply)
