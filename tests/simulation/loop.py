"""Virtual time: a scheduler for the world, and an asyncio event loop for each simulated process in it.

Within a process callbacks run in the order in which they were scheduled, as asyncio promises. Everything else is drawn
by the seed: which process runs next, how long a step takes, and the order of what falls due at the same moment.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Loop = Any  # its other methods are for files, sockets and threads, which nobody here has
else:
    Loop = asyncio.AbstractEventLoop

Callback = Callable[..., object]
NUDGE_S = 1e-7
"""The clock of a process is this much ahead, so that a timer never finds that it came a rounding error too early."""
STEPS_MAX = 20_000
"""The watchdog: no history that makes progress comes near."""


class Hang(Exception):
    """The history goes on for ever."""


class Handle:
    """What asyncio expects of a scheduled callback."""

    __slots__ = ("args", "callback", "context", "due_s", "gone", "loop")

    def __init__(
        self,
        callback: Callback,
        args: tuple[Any, ...],
        loop: VirtualLoop | None,
        context: contextvars.Context | None,
        due_s: float = 0.0,
    ) -> None:
        self.callback = callback
        self.args = args
        self.loop = loop
        self.context = context
        self.due_s = due_s
        self.gone = False

    def cancel(self) -> None:
        self.gone = True

    def cancelled(self) -> bool:
        return self.gone

    def when(self) -> float:
        """By the clock of the process."""
        return self.due_s + NUDGE_S + (0.0 if self.loop is None else self.loop.ahead_s)


class Scheduler:
    """The time of the world, everything that will happen in it, and the choice of what happens next."""

    def __init__(self, seed: int, step_s: float) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.steps = 0
        self._step_s = step_s
        self._due: list[tuple[float, float, int, Handle]] = []
        self._busy: list[VirtualLoop] = []
        self._count = 0
        self._entered: VirtualLoop | None = None

    def after_ms(self, delay_ms: float, callback: Callback, *args: Any) -> Handle:
        """Something of the world, not of a process: a message arrives, a caller comes back, a fault strikes."""
        handle = Handle(callback, args, None, None, self.now_s + delay_ms / 1000)
        self.push(handle)
        return handle

    def push(self, handle: Handle) -> None:
        self._count += 1
        heapq.heappush(self._due, (handle.due_s, self.rng.random(), self._count, handle))

    def busy(self, loop: VirtualLoop) -> None:
        self._busy.append(loop)

    def enter(self, loop: VirtualLoop | None) -> None:
        """The steps that follow are of this process."""
        if loop is not self._entered:
            self._entered = loop
            asyncio_events._set_running_loop(loop)

    def shift(self, loop: VirtualLoop, jump_s: float) -> None:
        """The clock of a process jumps ahead: its timers fall due earlier."""
        for _, _, _, handle in self._due:
            if handle.loop is loop:
                handle.due_s -= jump_s
        self._due = [(handle.due_s, tie, count, handle) for _, tie, count, handle in self._due]
        heapq.heapify(self._due)

    def run(self) -> None:
        """Until nothing is left to happen."""
        try:
            self._run()
        finally:
            self.enter(None)

    def _run(self) -> None:
        due, busy, draw = self._due, self._busy, self.rng.random
        while True:
            due = self._due
            if not busy:
                if not due:
                    return
                self.now_s = max(self.now_s, due[0][0])
            while due and due[0][0] <= self.now_s:
                handle = heapq.heappop(due)[3]
                if handle.gone:
                    continue
                if handle.loop is not None:
                    handle.loop.enqueue(handle)
                else:
                    handle.callback(*handle.args)
                    due = self._due
            if busy:
                self.steps += 1
                if self.steps > STEPS_MAX:
                    raise Hang(f"{STEPS_MAX} steps, {self.now_s:.3f} s")
                self.now_s += draw() * self._step_s
                at = int(draw() * len(busy)) if len(busy) > 1 else 0
                if not busy[at].step():
                    busy[at] = busy[-1]
                    busy.pop()


def own(context: contextvars.Context | None) -> contextvars.Context:
    """The context in which a callback runs. An empty one is false, and is the task's own all the same."""
    return contextvars.copy_context() if context is None else context


class VirtualLoop(Loop):  # type: ignore[misc]
    """The event loop of one process. It can be paused, and it can die: then nothing of it runs, no `finally` either."""

    def __init__(self, world: Scheduler) -> None:
        self.world = world
        self.steps = 0
        self.ahead_s = 0.0
        self.dead = False
        self.paused = False
        self.on_step: dict[int, Callable[[], None]] = {}
        self.failures: list[BaseException] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._ready: deque[Handle] = deque()
        self._listed = False

    def enqueue(self, handle: Handle) -> None:
        if self.dead:
            return
        self._ready.append(handle)
        if not self._listed and not self.paused:
            self._listed = True
            self.world.busy(self)

    def step(self) -> bool:
        """Run one callback. Says whether there is another one to run."""
        if not self._runs():
            self._listed = False
            return False
        handle = self._ready.popleft()
        if not handle.gone:
            self.steps += 1
            strike = self.on_step.pop(self.steps, None) if self.on_step else None
            if strike is not None:
                self._ready.appendleft(handle)
                strike()
            else:
                self.world.enter(self)
                try:
                    assert handle.context is not None
                    handle.context.run(handle.callback, *handle.args)
                except Exception as error:
                    self.failures.append(error)
        self._listed = bool(self._ready) and self._runs()
        return self._listed

    def _runs(self) -> bool:
        return not self.dead and not self.paused

    def pause(self, pause_ms: float) -> None:
        self.paused = True
        self.world.after_ms(pause_ms, self._resume)

    def _resume(self) -> None:
        self.paused = False
        if self._ready and not self._listed and not self.dead:
            self._listed = True
            self.world.busy(self)

    def jump(self, jump_ms: float) -> None:
        self.ahead_s += jump_ms / 1000
        self.world.shift(self, jump_ms / 1000)

    # What asyncio asks of a loop

    def time(self) -> float:
        return self.world.now_s + self.ahead_s + NUDGE_S

    def call_soon(self, callback: Callback, *args: Any, context: contextvars.Context | None = None) -> Any:
        handle = Handle(callback, args, self, own(context))
        self.enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callback, *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callback, *args: Any, context: contextvars.Context | None = None) -> Any:
        due_s = round(when - self.ahead_s - NUDGE_S, 6)
        handle = Handle(callback, args, self, own(context), due_s)
        self.world.push(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self.tasks.append(task)  # nothing of a dead process may be collected, or its `finally` would run
        return task

    def get_task_factory(self) -> Callable[..., asyncio.Task[Any]]:
        """Every task is made here: those of a dead process are kept, and some are cancelled."""
        return VirtualLoop.create_task

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def get_debug(self) -> bool:
        return False

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A failure that nobody looked at. Those of tasks are looked at by the oracle."""
