"""The memory store: the model plus a dict and a lock. For tests, and for one process that may forget."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

from semel.core import model
from semel.core.attempts import AttemptCount, CountAttempt, count_attempt
from semel.core.effects import Claim, Complete, Effect, Read, Release, Remove, Renew, Resolve
from semel.core.records import Key, Record
from semel.runtime.clock import steady_clock
from semel.store import Clock, Counts, Filter, Finding, Page, seen_as
from semel.stores.faces import AsyncFace, Face
from semel.stores.paging import key_after, page, sort_key
from semel.stores.url import StoreUrl
from semel.stores.waiters import AsyncWaiters, Waiters

T = TypeVar("T")
Step = Callable[..., tuple[Record | None, Any]]
ITS_KEY, ITS_LEASE = attrgetter("key"), attrgetter("lease.key")
STEPS: Mapping[type[Effect[Any]], tuple[Step, Callable[[Any], Key]]] = {
    Claim: (model.claim, ITS_KEY),
    Renew: (model.renew, ITS_LEASE),
    Complete: (model.complete, ITS_LEASE),
    Release: (model.release, ITS_LEASE),
    Resolve: (model.resolve, ITS_KEY),
    Remove: (model.remove, ITS_KEY),
}


class Records:
    """The dict and the lock. Both faces hold one."""

    def __init__(self, clock: Clock, wake: Callable[[Key], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._records: dict[Key, Record] = {}
        self._attempts: dict[Key, AttemptCount] = {}

    def answer(self, call: Effect[Any]) -> Any:
        if type(call) is CountAttempt:
            return self._count(call)
        found = STEPS.get(type(call))
        if found is None:
            return self._read(call)
        step, key = found[0], found[1](call)
        with self._lock:
            old = self._records.get(key)
            new, reply = step(old, call, self._clock())
            if new is not old:
                self._put(key, new)
                if old is not None and (new is None or new.owner != old.owner or new.state is not old.state):
                    self._wake(key)
        return reply

    def held_by(self, key: Key, owner: str) -> bool:
        record = self._records.get(key)
        return record is not None and record.in_progress() and record.owner == owner

    def purge(self, limit: int) -> int:
        if limit < 1:
            return 0
        with self._lock:
            now_ms = self._clock()
            steps = ((key, *model.purge(record, now_ms)) for key, record in self._records.items())
            some = list(islice(((key, new) for key, new, forgotten in steps if forgotten), limit))
            for key, new in some:
                self._put(key, new)
            for key in [key for key, counted in self._attempts.items() if counted.expires_ms <= now_ms][:limit]:
                del self._attempts[key]
            return len(some)

    def scan(self, filter: Filter, cursor: str | None, limit: int) -> Page:
        after = key_after(cursor)
        with self._lock:
            now_ms = self._clock()
            found = [record for record in self._records.values() if filter.matches(record, now_ms)]
        found.sort(key=lambda record: sort_key(record.key))
        rest = [record for record in found if after is None or sort_key(record.key) > sort_key(after)]
        return page(rest, limit, now_ms)

    def counts(self) -> Counts:
        with self._lock:
            now_ms = self._clock()
            seen = Counter(
                seen_as(record, now_ms) for record in self._records.values() if not record.past_retention(now_ms)
            )
        return Counts(seen["in_progress"], seen["unknown"], seen["succeeded"], seen["failed"])

    def clear(self) -> None:
        with self._lock:
            self._records.clear()
            self._attempts.clear()

    def _count(self, call: CountAttempt) -> int:
        with self._lock:
            counted = count_attempt(self._attempts.get(call.key), call, self._clock())
            self._attempts[call.key] = counted
            return counted.count

    def _put(self, key: Key, record: Record | None) -> None:
        if record is None:
            self._records.pop(key, None)
        else:
            self._records[key] = record

    def _read(self, call: Effect[Any]) -> Record | None:
        if not isinstance(call, Read):
            raise TypeError(f"no store performs {call!r}")
        with self._lock:
            return model.read(self._records.get(call.key), self._clock())


class MemoryStore(Face):
    """For threads of one process."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._waiters = Waiters()
        self._records = Records(clock or steady_clock(), self._waiters.wake)

    def _call(self, call: Effect[T]) -> T:
        reply: T = self._records.answer(call)
        return reply

    def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        with self._waiters.registered(key) as changed:
            return not self._records.held_by(key, owner) or changed.wait(timeout_ms / 1000)

    def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        return self._records.scan(filter, cursor, limit)

    def counts(self) -> Counts:
        return self._records.counts()

    def purge(self, *, limit: int) -> int:
        return self._records.purge(limit)

    def examine(self) -> Sequence[Finding]:
        return [
            Finding("promise", "warning", "everything is gone when this process ends", "use sqlite:///file.db instead")
        ]

    def close(self) -> None:
        self._records.clear()


class AsyncMemoryStore(AsyncFace):
    """For tasks of one event loop."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._waiters = AsyncWaiters()
        self._records = Records(clock or steady_clock(), self._waiters.wake)

    async def _call(self, call: Effect[T]) -> T:
        # Many tasks do the same step one after the other then: a processor has little room for what is done in turns.
        await asyncio.sleep(0)
        reply: T = self._records.answer(call)
        return reply

    async def wait(self, key: Key, *, owner: str, timeout_ms: int) -> bool:
        with self._waiters.registered(key) as changed:
            if not self._records.held_by(key, owner):
                return True
            return await changed.wait(timeout_ms / 1000)

    async def scan(self, filter: Filter = Filter(), *, cursor: str | None = None, limit: int = 100) -> Page:
        return self._records.scan(filter, cursor, limit)

    async def counts(self) -> Counts:
        return self._records.counts()

    async def purge(self, *, limit: int) -> int:
        return self._records.purge(limit)

    async def close(self) -> None:
        self._records.clear()


def open_store(url: StoreUrl, clock: Clock | None) -> MemoryStore:
    """Every opened memory store is a new, empty one."""
    return MemoryStore(clock=clock)


def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncMemoryStore:
    return AsyncMemoryStore(clock=clock)
