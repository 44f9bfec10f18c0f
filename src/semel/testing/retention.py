"""How long a record is owed, and what purge may delete."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from semel.core.records import Key, Lease, State
from semel.store import Store
from semel.testing.calls import claim, complete, granted, held, occupied, taken_over
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.samples import ANSWER, LEASE_MS, OTHER, PURGE_ALL, RETENTION_MS

SHORT_MS = 1_000
"""A retention that is shorter than the lease."""


class Retention(Handles):
    def test_a_record_is_gone_at_the_very_end_of_its_retention(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        granted(claim(store, key, "a"))
        clock.advance(RETENTION_MS - 1)
        assert store.get(key) is not None
        clock.advance(1)
        assert store.get(key) is None

    def test_completing_starts_the_retention_again(self, store: Store, clock: ManualClock, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        clock.advance(RETENTION_MS - 1)
        assert complete(store, lease, retention_ms=SHORT_MS)
        clock.advance(SHORT_MS - 1)
        assert store.get(key) is not None
        clock.advance(1)
        assert store.get(key) is None

    def test_a_take_over_starts_the_retention_again(self, store: Store, clock: ManualClock, key: Key) -> None:
        taken_over(store, clock, key)
        clock.advance(RETENTION_MS - 1)
        assert store.get(key) is not None
        clock.advance(1)
        assert store.get(key) is None

    def test_a_live_lease_never_expires(self, store: Store, clock: ManualClock, key: Key) -> None:
        granted(claim(store, key, "a", retention_ms=SHORT_MS))
        clock.advance(LEASE_MS - 1)
        store.purge(limit=PURGE_ALL)
        assert held(store, key).owner == "a"
        assert occupied(claim(store, key, "b", takeover=True)).owner == "a"
        clock.advance(1)
        assert store.get(key) is None
        assert granted(claim(store, key, "b", takeover=True)).attempt == 1

    def test_a_renewed_lease_never_expires(self, store: Store, clock: ManualClock, key: Key) -> None:
        lease = granted(claim(store, key, "a", retention_ms=SHORT_MS))
        clock.advance(LEASE_MS - 1)
        assert store.renew(lease, lease_ms=LEASE_MS) is not None
        clock.advance(LEASE_MS - 1)
        store.purge(limit=PURGE_ALL)
        assert held(store, key).owner == "a"
        clock.advance(1)
        assert store.get(key) is None

    def test_a_result_expires_however_long_its_lease_was(self, store: Store, clock: ManualClock, key: Key) -> None:
        assert complete(store, granted(claim(store, key, "a")), retention_ms=SHORT_MS)
        clock.advance(SHORT_MS)
        assert store.get(key) is None

    def test_a_released_attempt_keeps_its_retention(self, store: Store, clock: ManualClock, key: Key) -> None:
        _, successor = taken_over(store, clock, key)
        clock.advance(5)
        assert store.release(successor)
        clock.advance(RETENTION_MS - 6)
        assert store.get(key) is not None
        clock.advance(1)
        assert store.get(key) is None

    def test_purge_deletes_what_is_past_retention_and_says_how_much(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        store.purge(limit=PURGE_ALL)
        kept = self.one_of_each_kind(store, key, RETENTION_MS + 1)
        self.one_of_each_kind(store, replace(key, scope="expiring"), RETENTION_MS)
        clock.advance(RETENTION_MS - 1)
        assert store.purge(limit=PURGE_ALL) == 0
        clock.advance(1)
        assert store.purge(limit=PURGE_ALL) == 3
        assert store.purge(limit=PURGE_ALL) == 0
        assert [held(store, lease.key).attempt for lease in kept] == [1, 1, 1]

    def one_of_each_kind(self, store: Store, key: Key, retention_ms: int) -> list[Lease]:
        """A result, an unknown outcome, and a lease that lives as long as its retention."""
        result, unknown, live = (
            granted(claim(store, replace(key, name=name), "a", lease_ms=lease_ms, retention_ms=retention_ms))
            for name, lease_ms in (("result", LEASE_MS), ("unknown", LEASE_MS), ("live", retention_ms))
        )
        assert complete(store, result, retention_ms=retention_ms)
        return [result, unknown, live]

    def test_a_refused_key_answers_until_its_retention_ends_and_is_then_only_known(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        store.purge(limit=PURGE_ALL)
        lease = granted(claim(store, key, "a"))
        assert store.complete(lease, ANSWER, retention_ms=SHORT_MS, refuse_ms=RETENTION_MS)
        clock.advance(SHORT_MS - 1)
        assert store.purge(limit=PURGE_ALL) == 0
        assert occupied(claim(store, key, "b")).result == ANSWER
        clock.advance(1)
        there = occupied(claim(store, key, "b"))
        assert not there.answers(clock.now_ms)
        assert not there.past_retention(clock.now_ms)

    def test_the_result_of_a_refused_key_is_purged_before_its_record(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        store.purge(limit=PURGE_ALL)
        lease = granted(claim(store, key, "a"))
        assert store.complete(lease, ANSWER, retention_ms=SHORT_MS, refuse_ms=RETENTION_MS)
        clock.advance(SHORT_MS)
        assert store.purge(limit=PURGE_ALL) == 1
        assert store.purge(limit=PURGE_ALL) == 0
        there = occupied(claim(store, key, "b", takeover=True))
        assert (there.state, there.result, there.owner) == (State.SUCCEEDED, None, "a")
        assert occupied(claim(store, key, "b", fingerprint=OTHER)).fingerprint == there.fingerprint
        assert complete(store, lease), "the first result was kept, and its owner is told so"
        clock.advance(RETENTION_MS - 1)
        assert store.purge(limit=PURGE_ALL) == 0
        assert store.get(key) == there
        clock.advance(1)
        assert store.get(key) is None
        assert granted(claim(store, key, "b")).attempt == 1
        assert held(store, key).refuse_ms == 0

    def test_a_refused_key_that_was_never_purged_is_free_in_the_end(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        lease = granted(claim(store, key, "a"))
        assert store.complete(lease, ANSWER, retention_ms=SHORT_MS, refuse_ms=RETENTION_MS)
        clock.advance(SHORT_MS + RETENTION_MS - 1)
        assert occupied(claim(store, key, "b", takeover=True)).owner == "a"
        clock.advance(1)
        assert granted(claim(store, key, "b")).attempt == 1
        assert held(store, key).refuse_ms == 0, "nor the second attempt's, while it runs"
        assert complete(store, granted(claim(store, key, "b")), retention_ms=SHORT_MS)
        clock.advance(SHORT_MS)
        assert store.get(key) is None, "the refusal of the first result is not the second one's"

    def test_purge_deletes_no_more_than_its_limit(self, store: Store, clock: ManualClock, key: Key) -> None:
        store.purge(limit=PURGE_ALL)
        for number in range(7):
            granted(claim(store, replace(key, name=f"{number}"), "a"))
        clock.advance(RETENTION_MS)
        deleted = [store.purge(limit=3) for _ in range(4)]
        assert max(deleted) <= 3
        assert sum(deleted) == 7

    @pytest.mark.parametrize("call", ["renew", "complete", "release"])
    def test_an_owner_whose_record_was_purged_is_told_no(
        self, store: Store, clock: ManualClock, key: Key, call: str
    ) -> None:
        lease = granted(claim(store, key, "a"))
        clock.advance(RETENTION_MS)
        assert store.purge(limit=PURGE_ALL) >= 1
        match call:
            case "renew":
                assert store.renew(lease, lease_ms=LEASE_MS) is None
            case "complete":
                assert complete(store, lease) is False
            case _:
                assert store.release(lease) is False
        assert store.get(key) is None
