"""Those in this process who wait for a key.

Waking them costs microseconds; the store only has to wake other processes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from semel.core.effects import Claim, Complete, Effect, Release, Remove, Renew, Resolve
from semel.core.records import Acquired, Key


def changed_key(call: Effect[Any], reply: object) -> Key | None:
    """The key that a call took out of its owner's hands, or may have. A call that only looked wakes no waiter."""
    if isinstance(call, Claim):
        return call.key if isinstance(reply, Acquired) else None
    if isinstance(call, Renew):
        return None if call.lease_ms else call.key  # a lease that was ended
    return call.key if isinstance(call, Complete | Release | Resolve | Remove) else None


class Waiters:
    """For threads. Register first, then look at the record, then sleep: a change in between is not missed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[Key, set[threading.Event]] = {}

    @contextmanager
    def registered(self, key: Key) -> Iterator[threading.Event]:
        event = threading.Event()
        with self._lock:
            self._events.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            with self._lock:
                events = self._events[key]
                events.discard(event)
                if not events:
                    del self._events[key]

    def wake(self, key: Key) -> None:
        if self._events:
            with self._lock:
                for event in self._events.get(key, ()):
                    event.set()

    def wake_all(self) -> None:
        with self._lock:
            for events in self._events.values():
                for event in events:
                    event.set()

    def keys(self) -> list[Key]:
        with self._lock:
            return list(self._events)


class Change:
    """What one task waits for. A timer ends its wait, too: cheaper than a time limit that would have to cancel it."""

    __slots__ = ("_happened", "_sleeper", "_timer")

    def __init__(self) -> None:
        self._happened = False
        self._sleeper: asyncio.Future[None] | None = None
        self._timer: asyncio.Handle | None = None

    def set(self) -> None:
        """The task that makes the change also removes what the waiter has registered, so the waiter need not."""
        self._happened = True
        self._end()

    def clear(self) -> None:
        self._happened = False

    async def wait(self, timeout_s: float) -> bool:
        """Sleep until it happens, unless it has; False when the time ran out first. For one task at a time."""
        if self._happened or timeout_s <= 0:
            return self._happened
        loop = asyncio.get_running_loop()
        self._sleeper, self._timer = loop.create_future(), loop.call_later(timeout_s, self._end)
        try:
            await self._sleeper
        finally:
            if self._timer is not None:  # the waiter was cancelled
                self._timer.cancel()
        return self._happened

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)


Changes = dict[Change, None]
"""In the order in which they came, and are woken."""


class Registered:
    """A change among those of its key, while it is waited for. A class and no generator: the way out is short."""

    __slots__ = ("_all", "_change", "_key", "_these")

    def __init__(self, everybody: dict[Key, Changes], key: Key, these: Changes, change: Change) -> None:
        self._all = everybody
        self._key = key
        self._these = these
        self._change = change

    def __enter__(self) -> Change:
        return self._change

    def __exit__(self, *_: object) -> None:
        self._these.pop(self._change, None)
        if not self._these:
            self._all.pop(self._key, None)


class AsyncWaiters:
    """For tasks of one event loop."""

    def __init__(self) -> None:
        self._changes: dict[Key, Changes] = {}

    def registered(self, key: Key) -> Registered:
        change = Change()
        changes = self._changes.setdefault(key, {})
        changes[change] = None
        return Registered(self._changes, key, changes, change)

    def wake(self, key: Key) -> None:
        for change in self._changes.get(key, ()):
            change.set()

    def wake_all(self) -> None:
        for changes in self._changes.values():
            for change in changes:
                change.set()

    def keys(self) -> list[Key]:
        return list(self._changes)
