"""A reply can be lost after the store acted. The call is repeated with the same owner, and finds the same truth."""

from __future__ import annotations

import pytest

from semel.core.records import Key
from semel.store import Resolvable, Store
from semel.testing.calls import claim, complete, granted, held, occupied, taken_over
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.samples import ANSWER, LEASE_MS, PURGE_ALL, RETENTION_MS, SECOND_ANSWER


class Ambiguity(Handles):
    def test_a_repeated_claim(self, store: Store, clock: ManualClock, key: Key) -> None:
        first = claim(store, key, "a")
        before = held(store, key)
        clock.advance(1)
        assert claim(store, key, "a") == first
        assert store.get(key) == before

    def test_a_repeated_take_over(self, store: Store, clock: ManualClock, key: Key) -> None:
        _, successor = taken_over(store, clock, key)
        before = held(store, key)
        clock.advance(1)
        assert granted(claim(store, key, successor.owner, takeover=True)) == successor, "the attempt grew for nothing"
        assert store.get(key) == before

    def test_a_repeated_claim_that_was_refused(self, store: Store, key: Key) -> None:
        granted(claim(store, key, "a"))
        assert claim(store, key, "b") == claim(store, key, "b")

    def test_a_claim_repeated_after_its_caller_gave_up(self, store: Store, key: Key) -> None:
        """A release is by owner, so the key does not stay with a caller that is gone."""
        lease = granted(claim(store, key, "a"))
        assert store.release(lease) is True
        assert granted(claim(store, key, "b")).attempt == 1

    def test_a_repeated_renewal(self, store: Store, clock: ManualClock, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        clock.advance(1)
        assert store.renew(lease, lease_ms=LEASE_MS) == store.renew(lease, lease_ms=LEASE_MS)
        assert held(store, key).lease_until_ms == clock.now_ms + LEASE_MS

    def test_a_repeated_complete(self, store: Store, clock: ManualClock, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        assert complete(store, lease)
        before = held(store, key)
        for _ in range(3):
            clock.advance(1)
            assert complete(store, lease) is True
        assert store.get(key) == before, "neither the time of completion nor the retention may move"

    def test_a_complete_repeated_after_a_take_over(self, store: Store, clock: ManualClock, key: Key) -> None:
        zombie, successor = taken_over(store, clock, key)
        assert complete(store, successor, SECOND_ANSWER)
        assert complete(store, zombie) is False
        assert complete(store, successor, ANSWER) is True
        assert held(store, key).result == SECOND_ANSWER

    def test_a_repeated_release(self, store: Store, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        assert store.release(lease) is True
        assert store.release(lease) is False, "there is nothing left to give back"
        assert store.get(key) is None

    def test_a_repeated_release_never_takes_the_key_from_the_next_one(self, store: Store, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        assert store.release(lease) is True
        next_one = granted(claim(store, key, "b"))
        assert store.release(lease) is False
        assert complete(store, next_one)

    def test_a_repeated_release_of_a_later_attempt(self, store: Store, clock: ManualClock, key: Key) -> None:
        _, successor = taken_over(store, clock, key)
        assert store.release(successor) is True
        before = held(store, key)
        clock.advance(1)
        assert store.release(successor) is False
        assert store.get(key) == before

    def test_a_release_after_a_complete_that_was_thought_lost(self, store: Store, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        assert complete(store, lease)
        assert store.release(lease) is False
        assert occupied(claim(store, key, "b")).result == ANSWER

    def test_a_repeated_resolution(self, store: Store, clock: ManualClock, key: Key) -> None:
        if not isinstance(store, Resolvable):
            pytest.skip("the store cannot resolve")
        granted(claim(store, key, "a"))
        clock.advance(LEASE_MS)
        seen = held(store, key)
        assert store.resolve(seen, ANSWER, retention_ms=RETENTION_MS) is True
        before = held(store, key)
        clock.advance(1)
        assert store.resolve(seen, SECOND_ANSWER, retention_ms=RETENTION_MS) is False
        assert store.get(key) == before

    def test_a_repeated_purge(self, store: Store, clock: ManualClock, key: Key) -> None:
        granted(claim(store, key, "a"))
        clock.advance(RETENTION_MS)
        assert store.purge(limit=PURGE_ALL) >= 1
        assert store.purge(limit=PURGE_ALL) == 0
