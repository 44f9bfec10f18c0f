"""Keeps leases alive while their work runs: by one thread, or one timer, however many leases there are.

A lease is renewed when a third of it has passed. When the store says that the lease is not ours any more, the work is
told (`lost`). A store that does not answer is asked again sooner. The lease may lapse meanwhile, but it stays ours
until another executor takes it over.

Stop before completing: the reply to a renewal that is already on its way is then ignored.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import takewhile
from typing import Any, Generic, TypeVar

from semel.core.events import Event, EventKind
from semel.core.records import Lease
from semel.runtime.listener import OnEvent, ignore
from semel.runtime.local import PerLoop, PerProcess
from semel.store import AsyncStore, Store

QUANTUM_S = 0.01
"""Renewals that fall due within this time of each other go out together."""
RENEW_PART = 3
"""A lease is renewed when this part of it has passed."""
RETRY_PART = 10
"""After a failed renewal the next try comes when this part of the lease has passed."""
IDLE_S = 1.0
"""How long the thread stays when there is nothing to keep."""


NO_LANE: dict[Any, float] = {}
"""The lane of a lease that is not kept yet. It stays empty."""


class Kept:
    """A lease being kept. `lost` is for the work to look at; `on_lost` is called once, from the keeper."""

    __slots__ = ("_on_event", "_on_lost", "lane", "lease", "lease_ms", "lost", "stopped")

    def __init__(
        self, lease: Lease, lease_ms: int, on_lost: Callable[[], None] | None, on_event: OnEvent = ignore
    ) -> None:
        self.lease = lease
        self.lease_ms = lease_ms
        self.lost = False
        self.stopped = False
        self.lane: dict[Kept, float] = NO_LANE
        self._on_lost = on_lost
        self._on_event = on_event

    def renewed(self, lease: Lease | None) -> None:
        """Take a renewal's reply, unless the lease was stopped or lost before."""
        if self.stopped:
            return
        if lease is not None:
            self.lease = lease
            return
        self.stopped = self.lost = True
        mine = self.lease
        self._on_event(Event(EventKind.LEASE_LOST, mine.key, mine.attempt, owner=mine.owner))
        if self._on_lost is not None:
            self._on_lost()


class Wheel:
    """Kept leases, in one lane for each resting time: within a lane they fall due in the order in which they came."""

    def __init__(self) -> None:
        self._lanes: dict[float, dict[Kept, float]] = {}

    def add(self, kept: Kept, now_s: float, rest_s: float) -> float:
        """Add a lease that rests for `rest_s`, and return when it falls due."""
        lane = self._lanes.get(rest_s)
        if lane is None:
            lane = self._lanes[rest_s] = {}
        kept.lane = lane
        lane[kept] = due_s = now_s + rest_s
        return due_s

    def take_due(self, now_s: float) -> list[Kept]:
        """The leases that are due, together with those that fall due soon after; nothing if none is due yet."""
        due: list[Kept] = []
        if (next_s := self.next_s()) is None or next_s > now_s:
            return due
        for lane in self._lanes.values():
            first = takewhile(lambda member: member[1] <= now_s + QUANTUM_S, lane.items())
            for kept, _ in list(first):
                del lane[kept]
                due.append(kept)
        return due

    def next_s(self) -> float | None:
        """When the next lease falls due, or None when there is none."""
        self._lanes = {rest_s: lane for rest_s, lane in self._lanes.items() if lane}
        return min((next(iter(lane.values())) for lane in self._lanes.values()), default=None)


R = TypeVar("R", "PerProcess[Rounds]", "PerLoop[AsyncRounds]")


class AnyKeeper(Generic[R]):
    """What both keepers do. Their rounds are of one process, or of one event loop."""

    def __init__(self, rounds: R, on_event: OnEvent) -> None:
        self._rounds: R = rounds
        self._on_event = on_event

    def keep(
        self, lease: Lease, *, lease_ms: int, on_lost: Callable[[], None] | None = None, on_event: OnEvent | None = None
    ) -> Kept:
        """Renew `lease` until `stop`. When it is lost, `on_event` is told, or else the keeper's own listener."""
        kept = Kept(lease, lease_ms, on_lost, on_event or self._on_event)
        self._rounds.get().add(kept, RENEW_PART)
        return kept


class Keeper(AnyKeeper["PerProcess[Rounds]"]):
    """Renews from a daemon thread that exists only while there is something to keep; a forked child gets its own."""

    def __init__(self, store: Store, on_event: OnEvent = ignore) -> None:
        super().__init__(PerProcess(lambda: Rounds(store)), on_event)

    def stop(self, kept: Kept) -> None:
        kept.stopped = True
        self._rounds.get().discard(kept)


class Rounds:
    """The thread of a `Keeper` in one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wheel = Wheel()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._looks_s = 0.0
        """When the thread looks again by itself. Before its first look it needs no wake-up."""

    def add(self, kept: Kept, part: int) -> None:
        with self._changed:
            if kept.stopped:  # it was stopped while its renewal was on its way
                return
            due_s = self._wheel.add(kept, time.monotonic(), kept.lease_ms / 1000 / part)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="semel-keeper", daemon=True)
                thread.start()  # first: if no thread can start, the next lease must try again
                self._thread = thread
            elif due_s < self._looks_s:  # else the thread looks in time by itself, and waking it is expensive
                self._changed.notify()

    def discard(self, kept: Kept) -> None:
        with self._changed:
            kept.lane.pop(kept, None)

    def _run(self) -> None:
        while (due := self._next_due()) is not None:
            for kept in due:
                self._renew(kept)

    def _next_due(self) -> list[Kept] | None:
        """Sleep until something falls due, or return None when there has been nothing to keep for a while."""
        with self._changed:
            while not (due := self._wheel.take_due(now_s := time.monotonic())):
                next_s = self._wheel.next_s()
                self._looks_s = now_s + IDLE_S if next_s is None else next_s
                woken = self._changed.wait(max(0.0, self._looks_s - now_s))
                if next_s is None and not woken and self._wheel.next_s() is None:
                    self._thread, self._looks_s = None, 0.0
                    return None
            return due

    def _renew(self, kept: Kept) -> None:
        if kept.stopped:
            return
        part = RENEW_PART
        try:
            kept.renewed(self._store.renew(kept.lease, lease_ms=kept.lease_ms))
        except Exception:  # of any kind: if the thread died, every other lease would lapse
            part = RETRY_PART
        self.add(kept, part)


class AsyncKeeper(AnyKeeper["PerLoop[AsyncRounds]"]):
    """Renews from tasks of the running loop; each loop has its own wheel and at most one timer.

    `keep` needs no task, and no timer while another one fires earlier.
    """

    def __init__(self, store: AsyncStore, on_event: OnEvent = ignore) -> None:
        super().__init__(PerLoop(lambda: AsyncRounds(store, asyncio.get_running_loop())), on_event)

    def stop(self, kept: Kept) -> None:
        kept.stopped = True
        kept.lane.pop(kept, None)


class AsyncRounds:
    """The timer of an `AsyncKeeper` in one event loop."""

    def __init__(self, store: AsyncStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._wheel = Wheel()
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0
        self._renewals: set[asyncio.Task[None]] = set()

    def add(self, kept: Kept, part: int) -> None:
        if kept.stopped:
            return
        due_s = self._wheel.add(kept, self._loop.time(), kept.lease_ms / 1000 / part)
        if self._timer is None or due_s < self._timer_s:
            self._schedule(due_s)

    def _schedule(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Kept here: uvloop's handle for a timer that is due now does not know its time.
        self._timer, self._timer_s = self._loop.call_at(due_s, self._fire), due_s

    def _fire(self) -> None:
        self._timer = None
        for kept in self._wheel.take_due(max(self._loop.time(), self._timer_s)):  # some event loops' timers fire early
            task = self._loop.create_task(self._renew(kept))
            self._renewals.add(task)
            task.add_done_callback(self._renewals.discard)
        next_s = self._wheel.next_s()
        if next_s is not None:
            self._schedule(next_s)

    async def _renew(self, kept: Kept) -> None:
        if kept.stopped:
            return
        part = RENEW_PART
        try:
            kept.renewed(await self._store.renew(kept.lease, lease_ms=kept.lease_ms))
        except Exception:
            part = RETRY_PART
        self.add(kept, part)
