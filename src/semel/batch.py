"""The async coalescer: whatever waits while the previous batch is in flight goes out as one.

There is no timer, so a lone caller is never delayed, and a busy store is asked in fewer, larger round trips. Callers
stay independent: a failed batch is repeated one by one, and a caller that is cancelled takes nobody's call with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from semel.errors import StoreUnavailable

C = TypeVar("C")
R = TypeVar("R")
BATCH_MAX = 256
HALVED_FROM = 48
"""So many calls that come at once are sent in two halves: while the store has the one, this process has the other."""
AWAY_AFTER = 2
"""A store is away when this many calls in a row got no answer: a single one may have been its own fault."""


class Batcher(Generic[C, R]):
    """Collects calls for `send`, which takes a list and answers in the same order.

    `orphaned` is told of each call whose caller was cancelled after it was sent, with the reply or the failure, so
    that what the store granted to nobody can be given back. Every call must be safe to repeat: that is what an owner
    is for.

    Callers who were answered together ask together again, and without `halves` the store and this process would wait
    for each other in turn. What has gathered while a batch was in flight is never halved.
    """

    def __init__(
        self,
        send: Callable[[Sequence[C]], Awaitable[Sequence[R]]],
        *,
        orphaned: Callable[[C, R | BaseException], None] | None = None,
        batch_max: int = BATCH_MAX,
        halves: bool = True,
    ) -> None:
        self._send = send
        self._orphaned = orphaned
        self._batch_max = batch_max
        self._halves = halves
        self._waiting: deque[tuple[C, asyncio.Future[R]]] = deque()
        self._sender: asyncio.Task[None] | None = None

    async def call(self, call: C) -> R:
        """Send `call` with whatever else is waiting, and return its own reply."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((call, future))
        # A sender that was cancelled before it began never came to its own end, but it is done.
        if self._sender is None or self._sender.done():
            self._sender = loop.create_task(self._send_all())
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # answered, but cancelled before the answer could be looked at
                self._orphan(call, future.exception() or future.result())
            raise

    async def drain(self) -> None:
        """Wait until everything that was asked for has been answered."""
        while self._sender is not None and not self._sender.done():
            await asyncio.wait([self._sender])

    async def _send_all(self) -> None:
        batch: list[tuple[C, asyncio.Future[R]]] = []
        came = len(self._waiting)
        most = (came + 1) // 2 if self._halves and came >= HALVED_FROM else came
        try:
            while self._waiting:
                if batch := self._take(most):
                    await self._send_batch(batch)
                    batch, most = [], self._batch_max
        finally:
            self._sender = None
            for _, future in (*batch, *self._waiting):  # only when the event loop is being shut down around us
                future.cancel()
            self._waiting.clear()

    def _take(self, most: int) -> list[tuple[C, asyncio.Future[R]]]:
        count = min(most, self._batch_max, len(self._waiting))
        taken = [self._waiting.popleft() for _ in range(count)]
        return [member for member in taken if not member[1].cancelled()]  # never sent: there is nothing to give back

    async def _send_batch(self, batch: list[tuple[C, asyncio.Future[R]]]) -> None:
        try:
            replies = await self._sent([call for call, _ in batch])
        except Exception as error:
            failure = error
        else:
            for (call, future), reply in zip(batch, replies, strict=True):
                if isinstance(reply, Exception) or future.cancelled():
                    self._answer(call, future, reply)
                else:  # nearly all
                    future.set_result(reply)
            return
        if len(batch) == 1:
            self._answer(*batch[0], failure)
        else:
            await self._one_by_one(batch, failure)

    async def _one_by_one(self, batch: list[tuple[C, asyncio.Future[R]]], failure: Exception) -> None:
        """Find out whose call it was. Once the store is seen to be away, the rest is told so without being tried."""
        failed_in_a_row = 0
        for call, future in batch:
            if future.cancelled() or failed_in_a_row == AWAY_AFTER:
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
                call, future = self._waiting.popleft()
                if not future.cancelled():
                    future.set_exception(StoreUnavailable(str(failure)))

    async def _sent(self, calls: Sequence[C]) -> Sequence[R]:
        replies = await self._send(calls)
        if len(replies) != len(calls):
            raise StoreUnavailable(f"the store answered {len(replies)} of {len(calls)} calls")
        return replies

    def _answer(self, call: C, future: asyncio.Future[R], reply: R | Exception) -> None:
        if future.cancelled():
            self._orphan(call, reply)
        elif isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    def _orphan(self, call: C, reply: R | BaseException) -> None:
        if self._orphaned is not None:
            self._orphaned(call, reply)
