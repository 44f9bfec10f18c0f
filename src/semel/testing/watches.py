"""Watchable: waiters for a key are woken when its owner no longer holds it, in every way in which that can happen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest

from semel.core.records import Key, Lease
from semel.store import Resolvable, Store, Watchable
from semel.testing.calls import claim, complete, granted
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.processes import PATIENCE_S, Crew
from semel.testing.samples import ANSWER, LEASE_MS, RETENTION_MS

WAIT_MS = 30_000
"""Far more than waking takes, so a wait that ends by its timeout is seen."""
SETTLE_S = 0.03


def end(store: Store, lease: Lease, how: str) -> bool:
    match how:
        case "complete":
            return complete(store, lease)
        case "release":
            return store.release(lease)
        case _:
            assert isinstance(store, Resolvable)
            seen = store.get(lease.key)
            assert seen is not None
            return store.resolve(seen, ANSWER, retention_ms=RETENTION_MS)


def end_elsewhere(store: Store, barrier: Barrier, lease: Lease, how: str) -> bool:
    assert store.get(lease.key) is not None
    barrier.wait(PATIENCE_S)
    time.sleep(SETTLE_S)  # the waiter has to fall asleep first
    return end(store, lease, how)


class Watches(Handles):
    @pytest.mark.parametrize("how", ["complete", "release", "resolve"])
    def test_a_change_wakes_those_who_wait(self, store: Store, clock: ManualClock, key: Key, how: str) -> None:
        lease = self.held_lease(store, clock, key, how)
        self.woken(store, lease, lambda: end(store, lease, how))

    @pytest.mark.parametrize("how", ["complete", "release", "resolve"])
    def test_a_change_by_another_handle_wakes_those_who_wait(
        self, store: Store, another: Store, clock: ManualClock, key: Key, how: str
    ) -> None:
        lease = self.held_lease(store, clock, key, how)
        self.woken(store, lease, lambda: end(another, lease, how))

    def test_a_change_by_another_process_wakes_those_who_wait(self, store: Store, clock: ManualClock, key: Key) -> None:
        if not self.shared:
            pytest.skip("the store lives in one object")
        lease = self.held_lease(store, clock, key, "complete")
        crew = Crew(self, clock, end_elsewhere, [(lease, "complete")], ours=1)

        def tell() -> Any:
            crew.barrier.wait(PATIENCE_S)
            return crew.collect() == [True]

        self.woken(store, lease, tell, wait_ms=PATIENCE_S * 1000)

    def woken(self, store: Store, lease: Lease, change: Callable[[], Any], *, wait_ms: int = WAIT_MS) -> None:
        """Several wait, one change wakes them all, well before their time is up."""
        watch = require_watchable(store)
        with ThreadPoolExecutor(3) as threads:
            started = time.monotonic()
            waits: list[Future[bool]] = [
                threads.submit(watch.wait, lease.key, owner=lease.owner, timeout_ms=wait_ms) for _ in range(3)
            ]
            time.sleep(SETTLE_S)
            assert change()
            assert [wait.result() for wait in waits] == [True, True, True]
            assert time.monotonic() - started < wait_ms / 1000 * 0.8

    def test_nothing_wakes_those_who_wait_for_nothing(self, store: Store, key: Key) -> None:
        """Waking early is allowed, so it may happen once; sleeping for ever is not."""
        watch = require_watchable(store)
        granted(claim(store, key, "a"))
        started = time.monotonic()
        waits = [watch.wait(key, owner="a", timeout_ms=30) for _ in range(3)]
        assert not all(waits)
        assert time.monotonic() - started < 5

    def test_another_key_wakes_nobody(self, store: Store, key: Key) -> None:
        watch = require_watchable(store)
        granted(claim(store, key, "a"))
        lease = granted(claim(store, Key(key.tenant, key.scope, "another"), "a"))
        timer = threading.Timer(0.01, lambda: complete(store, lease))
        timer.start()
        assert not all(watch.wait(key, owner="a", timeout_ms=40) for _ in range(2))
        timer.join()

    @pytest.mark.parametrize("how", ["complete", "release"])
    def test_a_change_before_the_wait_is_not_missed(self, store: Store, key: Key, how: str) -> None:
        watch = require_watchable(store)
        lease = granted(claim(store, key, "a"))
        assert end(store, lease, how)
        started = time.monotonic()
        assert watch.wait(key, owner="a", timeout_ms=WAIT_MS)
        assert time.monotonic() - started < WAIT_MS / 1000 * 0.8

    def test_a_key_that_another_one_holds_is_not_waited_for(self, store: Store, clock: ManualClock, key: Key) -> None:
        """The owner was superseded: that is a change, too."""
        watch = require_watchable(store)
        granted(claim(store, key, "a"))
        clock.advance(LEASE_MS)
        granted(claim(store, key, "b", takeover=True))
        assert watch.wait(key, owner="a", timeout_ms=WAIT_MS)

    def held_lease(self, store: Store, clock: ManualClock, key: Key, how: str) -> Lease:
        if how == "resolve" and not isinstance(store, Resolvable):
            pytest.skip("the store cannot resolve")
        lease = granted(claim(store, key, "a"))
        if how == "resolve":
            clock.advance(LEASE_MS)
        return lease


def require_watchable(store: Store) -> Watchable:
    if not isinstance(store, Watchable):
        pytest.skip("the store cannot be watched")
    return store
