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


class AsyncWaiters:
    """For tasks of one event loop."""

    def __init__(self) -> None:
        self._events: dict[Key, set[asyncio.Event]] = {}

    @contextmanager
    def registered(self, key: Key) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._events.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            events = self._events[key]
            events.discard(event)
            if not events:
                del self._events[key]

    def wake(self, key: Key) -> None:
        for event in self._events.get(key, ()):
            event.set()

    def wake_all(self) -> None:
        for events in self._events.values():
            for event in events:
                event.set()

    def keys(self) -> list[Key]:
        return list(self._events)


async def woken(changed: asyncio.Event, timeout_ms: int) -> bool:
    """Sleep until the event is set; False when the time ran out first.

    A timer sets it, too: cheaper than a time limit that would have to cancel us, and nothing else waits for this event.
    """
    late = False

    def time_is_up() -> None:
        nonlocal late
        late = not changed.is_set()
        changed.set()

    timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, time_is_up)
    try:
        await changed.wait()
    finally:
        timer.cancel()
    return not late
