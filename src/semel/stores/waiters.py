"""Those in this process who wait for a key.

Waking them costs microseconds; the store only has to wake other processes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from semel.core.effects import Claim, Complete, Effect, Release, Remove, Resolve
from semel.core.records import Acquired, Key


def changed_key(call: Effect[Any], reply: object) -> Key | None:
    """The key that a call took out of somebody's hands, or may have. Who only looked wakes nobody."""
    if isinstance(call, Claim):
        return call.key if isinstance(reply, Acquired) else None
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

    __slots__ = ("_happened", "_sleeper")

    def __init__(self) -> None:
        self._happened = False
        self._sleeper: asyncio.Future[bool] | None = None

    def set(self) -> None:
        self._happened = True
        if self._sleeper is not None:
            _end(self._sleeper, True)

    def clear(self) -> None:
        self._happened = False

    async def wait(self, timeout_s: float) -> bool:
        """Sleep until it happens, unless it has; False when the time ran out first."""
        if self._happened or timeout_s <= 0:
            return self._happened
        loop = asyncio.get_running_loop()
        self._sleeper = sleeper = loop.create_future()
        timer = loop.call_later(timeout_s, _end, sleeper, False)
        try:
            return await sleeper or self._happened
        finally:
            timer.cancel()


def _end(sleeper: asyncio.Future[bool], happened: bool) -> None:
    if not sleeper.done():
        sleeper.set_result(happened)


class AsyncWaiters:
    """For tasks of one event loop."""

    def __init__(self) -> None:
        self._changes: dict[Key, set[Change]] = {}

    @contextmanager
    def registered(self, key: Key) -> Iterator[Change]:
        change = Change()
        self._changes.setdefault(key, set()).add(change)
        try:
            yield change
        finally:
            changes = self._changes[key]
            changes.discard(change)
            if not changes:
                del self._changes[key]

    def wake(self, key: Key) -> None:
        for change in self._changes.get(key, ()):
            change.set()

    def wake_all(self) -> None:
        for changes in self._changes.values():
            for change in changes:
                change.set()

    def keys(self) -> list[Key]:
        return list(self._changes)
