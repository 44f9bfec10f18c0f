"""A short run by the store's own clock: the same life of a key, within tolerance."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from semel.core.records import Claimed, Key, Occupied
from semel.store import Migratable, Store
from semel.testing.calls import claim, complete, granted, held, occupied
from semel.testing.handles import Handles
from semel.testing.samples import ANSWER

LEASE_MS = 50
TOLERANCE_MS = 60_000
"""How far the clocks of this machine and of the store's may be apart."""


class RealTime(Handles):
    @pytest.fixture
    def real(self) -> Iterator[Store]:
        store = self.handle(None)
        if isinstance(store, Migratable):
            store.migrate()
        yield store
        store.close()

    def test_the_life_of_a_key_by_the_store_s_own_clock(self, real: Store, key: Key) -> None:
        lease = granted(claim(real, key, "a", lease_ms=LEASE_MS))
        record = held(real, key)
        assert abs(record.created_ms - time.time() * 1000) < TOLERANCE_MS
        assert record.lease_until_ms == lease.until_ms == record.created_ms + LEASE_MS
        renewed = real.renew(lease, lease_ms=LEASE_MS)
        assert renewed is not None
        assert renewed.until_ms >= lease.until_ms
        successor = granted(self.claim_until_granted(real, key))
        assert successor.attempt == 2
        assert successor.until_ms >= renewed.until_ms + LEASE_MS, "it was taken over before it lapsed"
        assert complete(real, lease) is False
        assert complete(real, successor)
        replay = occupied(claim(real, key, "c"))
        assert replay.result == ANSWER
        assert replay.completed_ms is not None
        assert replay.completed_ms >= replay.created_ms

    def claim_until_granted(self, store: Store, key: Key) -> Claimed:
        """Ask again until the lease has lapsed. What is refused must have been refused in time."""
        patience = time.monotonic() + 10
        while isinstance(claimed := claim(store, key, "b", lease_ms=LEASE_MS, takeover=True), Occupied):
            assert claimed.now_ms < claimed.record.lease_until_ms, "it was lapsed and not granted"
            assert time.monotonic() < patience, "the lease does not lapse"
            time.sleep(0.005)
        return claimed

    def test_the_time_of_a_reply_is_the_store_s(self, real: Store, key: Key) -> None:
        granted(claim(real, key, "a"))
        times = []
        for _ in range(3):
            claimed = claim(real, key, "b")
            assert isinstance(claimed, Occupied)
            times.append(claimed.now_ms)
            time.sleep(0.005)
        assert times[0] >= held(real, key).created_ms
        assert times[0] < times[1] < times[2]

    def test_a_record_is_gone_after_its_retention(self, real: Store, key: Key) -> None:
        assert complete(real, granted(claim(real, key, "a")), retention_ms=20)
        patience = time.monotonic() + 10
        while real.get(key) is not None:
            assert time.monotonic() < patience, "the record does not expire"
            time.sleep(0.005)
        assert granted(claim(real, key, "b", fingerprint="v1:other")).attempt == 1
