"""The keys whose requests are open in this process.

A twin is a repeat that comes while the first request is running. It waits here for the first one, and takes no
connection meanwhile. So many repeats of one slow request leave the pool to other requests. The table is only a hint
that saves connections: the unique key in the database decides, and nothing here ends a transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from semel.core.effects import Claim
from semel.core.records import Key
from semel.stores.waiters import AsyncWaiters, Waiters

POLLS_MS = (10, 20, 50, 100, 200)
"""How long a twin rests between its reads of a request that another process runs; the last value repeats."""


class OpenKeys:
    """The keys with an open transaction, each with the claim that was granted."""

    def __init__(self) -> None:
        self._claims: dict[Key, Claim] = {}

    def enter(self, claim: Claim) -> None:
        self._claims[claim.key] = claim

    def leave(self, claim: Claim) -> None:
        if self.first(claim.key) is claim:
            del self._claims[claim.key]

    def first(self, key: Key) -> Claim | None:
        return self._claims.get(key)

    def __contains__(self, key: Key) -> bool:
        return key in self._claims


class Twins:
    """For threads."""

    def __init__(self) -> None:
        self.keys = OpenKeys()
        self._waiters = Waiters()

    def leave(self, claim: Claim) -> None:
        """The request has ended: let its twins go on."""
        self.keys.leave(claim)
        self._waiters.wake(claim.key)

    def wait(self, key: Key, timeout_ms: int, rest_ms: int) -> None:
        """Sleep until the first request has ended, or rest if another process runs it."""
        with self._waiters.registered(key) as ended:
            if key in self.keys:
                ended.wait(timeout_ms / 1000)
                return
        time.sleep(min(timeout_ms, rest_ms) / 1000)


class AsyncTwins:
    """For the tasks of one event loop."""

    def __init__(self) -> None:
        self.keys = OpenKeys()
        self._waiters = AsyncWaiters()

    def leave(self, claim: Claim) -> None:
        self.keys.leave(claim)
        self._waiters.wake(claim.key)

    async def wait(self, key: Key, timeout_ms: int, rest_ms: int) -> None:
        with self._waiters.registered(key) as ended:
            bound_ms = timeout_ms if key in self.keys else min(timeout_ms, rest_ms)
            await ended.wait(bound_ms / 1000)


AnyTwins = Twins | AsyncTwins


def rests_ms() -> Iterator[int]:
    """How long to rest before each read."""
    yield from POLLS_MS
    while True:
        yield POLLS_MS[-1]
