"""Waiting for a key that another process holds, where the store has nothing that tells of a change: a waiter looks.

Each pause is longer than the one before. A change in the waiter's own process wakes it at once.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator

from semel.core.records import Key, Record
from semel.stores.waiters import AsyncWaiters, Waiters

LOOK_FIRST_S, LOOK_LAST_S = 0.02, 0.5
"""How long the first pause between two looks is, and how long a later one may be."""


def pauses_s(timeout_s: float) -> Iterator[float]:
    """The pauses between looks, until the time has run out."""
    deadline = time.monotonic() + timeout_s
    pause_s = LOOK_FIRST_S
    while (left_s := deadline - time.monotonic()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(1.5 * pause_s, LOOK_LAST_S)


def is_held(record: Record | None, owner: str) -> bool:
    return record is not None and record.owner == owner and record.in_progress()


class PollingWatch:
    """For threads of one process."""

    def __init__(self) -> None:
        self.waiters = Waiters()

    def wait(self, key: Key, owner: str, timeout_s: float, look: Callable[[Key], Record | None]) -> bool:
        with self.waiters.registered(key) as changed:
            return any(not is_held(look(key), owner) or changed.wait(pause_s) for pause_s in pauses_s(timeout_s))


class AsyncPollingWatch:
    """For tasks of one event loop. Their looks share batches, so a thousand waiters are a few questions."""

    def __init__(self) -> None:
        self.waiters = AsyncWaiters()

    async def wait(
        self, key: Key, owner: str, timeout_s: float, look: Callable[[Key], Awaitable[Record | None]]
    ) -> bool:
        with self.waiters.registered(key) as changed:
            for pause_s in pauses_s(timeout_s):
                if not is_held(await look(key), owner) or await changed.wait(pause_s):
                    return True
            return False
