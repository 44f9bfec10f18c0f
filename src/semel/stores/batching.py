"""The async coalescer: whatever waits while the previous batch is in flight goes out as one.

There is no timer, so a lone caller is never delayed, and a busy store is asked in fewer, larger round trips. Callers
stay independent: a failed batch is repeated one by one, and a caller that is cancelled takes no other call with it.

A call has one deadline, however it goes out: its caller is told then that the store did not answer, and what is under
way goes on. So the caller who gets a `StoreTimeout` for a claim has to give the claim back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from typing import Generic, TypeVar

from semel.errors import StoreTimeout, StoreUnavailable
from semel.runtime.deadline import SHARED_DUE_S, find_due_s, tell_due

C = TypeVar("C")
R = TypeVar("R")
BATCH_MAX = 256
SPOKEN_BY = 1.05
"""What part of the time of a call its caller waits for the reason why there is no answer."""
AWAY_AFTER = 2
"""A store is away when this many calls in a row got no answer: a single one may have been its own fault."""


Member = tuple[C, asyncio.Future[R], float]
"""A call, where its reply goes, and when its caller has waited long enough."""


class Batcher(Generic[C, R]):
    """Collects calls for `send`, which takes a list and answers in the same order.

    `orphaned` is told of each call whose caller was cancelled after it was sent, with the reply or the failure, so
    that a claim which was granted too late can be given back. Every call must be safe to repeat: that is what an owner
    is for.

    `timeout_s` bounds a call from when it is asked for until its caller is answered; `late` is what is said then.
    `send` has the same bound and better words for what it waited for, so it may speak first (`SPOKEN_BY`).
    """

    def __init__(
        self,
        send: Callable[[Sequence[C]], Awaitable[Sequence[R]]],
        *,
        orphaned: Callable[[C, R | BaseException], None] | None = None,
        batch_max: int = BATCH_MAX,
        timeout_s: float | None = None,
        late: str = "the store did not answer in time",
    ) -> None:
        self._send = send
        self._orphaned = orphaned
        self._batch_max = batch_max
        self._timeout_s = timeout_s
        self._late = late
        self._waiting: deque[Member[C, R]] = deque()
        self._flight: Sequence[Member[C, R]] = ()
        self._landing: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._sender: asyncio.Task[None] | None = None

    async def call(self, call: C) -> R:
        """Send `call` with whatever else is waiting, and return its own reply."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        due_s, grace_s = 0.0, 0.0
        if self._timeout_s is not None:
            grace_s = self._timeout_s * (SPOKEN_BY - 1)
            due_s = find_due_s(loop.time(), self._timeout_s) + grace_s
            # One for many calls: a timer for each would cost more than the rest of this.
            if self._timer is None or due_s < self._timer_s:
                self._look_at(due_s)
        self._waiting.append((call, future, due_s))
        # A sender that was cancelled before it began never came to its own end, but it is done.
        if self.is_idle:
            self._sender = self._start(loop)
        try:
            return await future
        except StoreUnavailable as failure:
            if self._timeout_s is not None:
                tell_due(failure, due_s - grace_s)
            raise
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # answered, but cancelled before the answer could be looked at
                self._orphan(call, future.exception() or future.result())
            raise

    def _start(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        if SHARED_DUE_S.get() is None:
            return loop.create_task(self._send_all())
        context = copy_context()  # the sender works for others, too, and gives back what cancelled callers were granted
        context.run(SHARED_DUE_S.set, None)
        return context.run(loop.create_task, self._send_all())

    @property
    def is_idle(self) -> bool:
        """Whether a call would be sent at once."""
        return self._sender is None or self._sender.done()

    async def drain(self) -> None:
        """Wait until everything that was asked for has been answered."""
        while self._sender is not None and not self._sender.done():
            await asyncio.wait([self._sender])

    async def landed(self) -> None:
        """Wait until what is in flight now is not any more, whether its callers still wait for it or not."""
        if self._flight:
            landing = asyncio.get_running_loop().create_future()
            self._landing.append(landing)
            await landing

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                if batch := self._take():
                    self._flight = batch
                    await self._send_batch(batch)
                    self._land()
        finally:
            self._sender = None
            for _, future, _ in (*self._flight, *self._waiting):  # only when the event loop is shut down around us
                future.cancel()
            self._waiting.clear()
            self._land()

    def _take(self) -> list[Member[C, R]]:
        count = min(self._batch_max, len(self._waiting))
        taken = [self._waiting.popleft() for _ in range(count)]
        return [member for member in taken if not member[1].done()]  # never sent: there is nothing to give back

    def _land(self) -> None:
        self._flight = ()
        for landing in self._landing:
            if not landing.done():
                landing.set_result(None)
        self._landing.clear()

    def _look_at(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due_s, self._look, due_s)
        self._timer_s = due_s

    def _look(self, at_s: float) -> None:
        """Answer those who have waited long enough. The first ones are not always the first to be answered."""
        self._timer = None
        now_s = max(asyncio.get_running_loop().time(), at_s)  # timers of some loops come early
        unanswered = [member for member in (*self._flight, *self._waiting) if not member[1].done()]
        for _, future, due_s in unanswered:
            if due_s <= now_s:
                future.set_exception(StoreTimeout(self._late))
        if later := [due_s for _, _, due_s in unanswered if due_s > now_s]:
            self._look_at(min(later))

    async def _send_batch(self, batch: list[Member[C, R]]) -> None:
        try:
            replies = await self._sent([call for call, _, _ in batch])
        except Exception as error:
            failure = error
        else:
            for (call, future, _), reply in zip(batch, replies, strict=True):
                if isinstance(reply, Exception) or future.done():
                    self._answer(call, future, reply)
                else:  # nearly all
                    future.set_result(reply)
            return
        if len(batch) == 1:
            self._answer(*batch[0][:2], failure)
        elif isinstance(failure, StoreTimeout):  # each of them has waited for as long as it may
            for call, future, _ in batch:
                self._answer(call, future, StoreTimeout(str(failure)))
        else:
            await self._one_by_one(batch, failure)

    async def _one_by_one(self, batch: list[Member[C, R]], failure: Exception) -> None:
        """Find out whose call it was. Once the store is seen to be away, the rest is told so without being tried."""
        failed_in_a_row = 0
        for call, future, _ in batch:
            if future.done() or failed_in_a_row == AWAY_AFTER:
                reply: R | Exception = StoreUnavailable(str(failure))
            else:
                try:
                    reply, failed_in_a_row = (await self._sent([call]))[0], 0
                except Exception as error:
                    reply, failure = error, error
                    failed_in_a_row += isinstance(error, StoreUnavailable)
            self._answer(call, future, reply)
        if failed_in_a_row == AWAY_AFTER:  # what came meanwhile would only wait for the same
            while self._waiting:
                _, future, _ = self._waiting.popleft()
                if not future.done():
                    future.set_exception(StoreUnavailable(str(failure)))

    async def _sent(self, calls: Sequence[C]) -> Sequence[R]:
        replies = await self._send(calls)
        if len(replies) != len(calls):
            raise StoreUnavailable(f"the store answered {len(replies)} of {len(calls)} calls")
        return replies

    def _answer(self, call: C, future: asyncio.Future[R], reply: R | Exception) -> None:
        if future.cancelled():
            self._orphan(call, reply)
        elif future.done():  # too late: its caller was told so, and gives back what it may have been granted
            return
        elif isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    def _orphan(self, call: C, reply: R | BaseException) -> None:
        if self._orphaned is not None:
            self._orphaned(call, reply)
