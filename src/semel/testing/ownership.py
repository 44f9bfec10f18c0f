"""Renew, complete and release act for the current owner only. Ownership ends by take-over, not by time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from semel.core.records import Key, Lease, Occupied, Result, State
from semel.store import Store
from semel.testing.calls import claim, complete, granted, held, occupied, taken_over
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.samples import ANSWER, LEASE_MS, REFUSAL, RETENTION_MS, SECOND_ANSWER


class Ownership(Handles):
    def test_renewing_moves_the_end_of_the_lease_and_nothing_else(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        lease = granted(claim(store, key, "a"))
        before = held(store, key)
        for lease_ms in (LEASE_MS, 7):  # longer than what is left, and shorter
            clock.advance(5)
            until_ms = clock.now_ms + lease_ms
            assert store.renew(lease, lease_ms=lease_ms) == replace(lease, until_ms=until_ms)
            assert store.get(key) == replace(before, lease_until_ms=until_ms)

    def test_a_renewed_lease_is_live(self, store: Store, clock: ManualClock, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        clock.advance(LEASE_MS - 1)
        store.renew(lease, lease_ms=LEASE_MS)
        clock.advance(LEASE_MS - 1)
        assert occupied(claim(store, key, "b", takeover=True)).owner == "a"
        clock.advance(1)
        assert granted(claim(store, key, "b", takeover=True)).attempt == 2

    def test_a_lease_of_0_ms_has_lapsed(self, store: Store, clock: ManualClock, key: Key) -> None:
        """How an executor says that it is at work no more, and cannot tell what it did."""
        lease = granted(claim(store, key, "a"))
        clock.advance(5)
        assert store.renew(lease, lease_ms=0) == replace(lease, until_ms=clock.now_ms)
        assert held(store, key).lapsed(clock.now_ms)
        claimed = claim(store, key, "b")
        assert isinstance(claimed, Occupied)
        assert claimed.record.lapsed(claimed.now_ms)
        assert granted(claim(store, key, "c", takeover=True)).attempt == 2

    @pytest.mark.parametrize("result", [ANSWER, REFUSAL], ids=["succeeded", "failed"])
    def test_completing_stores_the_result_and_ends_the_lease(
        self, store: Store, clock: ManualClock, key: Key, result: Result
    ) -> None:
        lease = granted(claim(store, key, "a"))
        before = held(store, key)
        clock.advance(5)
        assert complete(store, lease, result, retention_ms=11)
        assert store.get(key) == replace(
            before,
            state=State.SUCCEEDED if result.ok else State.FAILED,
            result=result,
            completed_ms=clock.now_ms,
            lease_until_ms=clock.now_ms,
            expires_ms=clock.now_ms + 11,
        )

    @pytest.mark.parametrize("first", [ANSWER, REFUSAL], ids=["succeeded", "failed"])
    def test_the_first_result_is_kept(self, store: Store, clock: ManualClock, key: Key, first: Result) -> None:
        lease = granted(claim(store, key, "a"))
        assert complete(store, lease, first)
        before = held(store, key)
        for later in (first, SECOND_ANSWER, REFUSAL):
            clock.advance(5)
            assert complete(store, lease, later, retention_ms=2 * RETENTION_MS), "a repeat is told that it is done"
            assert store.get(key) == before

    def test_a_finished_key_is_neither_renewed_nor_released(self, store: Store, clock: ManualClock, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        assert complete(store, lease)
        before = held(store, key)
        clock.advance(5)
        assert store.renew(lease, lease_ms=LEASE_MS) is None
        assert store.release(lease) is False
        assert store.get(key) == before

    def test_a_lapsed_owner_may_renew(self, store: Store, clock: ManualClock, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        clock.advance(RETENTION_MS - 1)
        assert store.renew(lease, lease_ms=LEASE_MS) == replace(lease, until_ms=clock.now_ms + LEASE_MS)
        assert occupied(claim(store, key, "b", takeover=True)).owner == "a"

    def test_a_lapsed_owner_may_complete(self, store: Store, clock: ManualClock, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        clock.advance(RETENTION_MS - 1)
        assert complete(store, lease)
        assert held(store, key).result == ANSWER

    def test_a_lapsed_owner_may_release(self, store: Store, clock: ManualClock, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        clock.advance(RETENTION_MS - 1)
        assert store.release(lease) is True
        assert store.get(key) is None

    def test_a_superseded_owner_can_do_nothing(self, store: Store, clock: ManualClock, key: Key) -> None:
        zombie, successor = taken_over(store, clock, key)
        before = held(store, key)
        self.can_do_nothing(store, zombie)
        assert store.get(key) == before
        assert complete(store, successor)
        before = held(store, key)
        self.can_do_nothing(store, zombie)
        assert store.get(key) == before

    def test_a_stranger_can_do_nothing(self, store: Store, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        before = held(store, key)
        self.can_do_nothing(store, replace(lease, owner="stranger"))
        assert store.get(key) == before

    def test_nobody_holds_an_absent_key(self, store: Store, key: Key) -> None:
        self.can_do_nothing(store, Lease(key, "a", 1, 0))
        assert store.get(key) is None

    def can_do_nothing(self, store: Store, lease: Lease) -> None:
        assert store.renew(lease, lease_ms=LEASE_MS * 2) is None
        assert complete(store, lease, SECOND_ANSWER) is False
        assert store.release(lease) is False

    def test_the_owner_is_what_counts_not_what_else_is_written_on_the_lease(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        _, successor = taken_over(store, clock, key)
        by_owner_alone = Lease(key, successor.owner, 1, 0)  # what is left of a claim whose reply was lost
        assert store.renew(by_owner_alone, lease_ms=7) == Lease(key, successor.owner, 2, clock.now_ms + 7)
        assert complete(store, by_owner_alone)

    def test_releasing_the_first_attempt_leaves_nothing(self, store: Store, clock: ManualClock, key: Key) -> None:
        assert store.release(granted(claim(store, key, "a"))) is True
        assert store.get(key) is None
        clock.advance(5)
        assert granted(claim(store, key, "b", fingerprint="v1:corrected")).attempt == 1
        assert held(store, key).created_ms == clock.now_ms

    def test_releasing_a_later_attempt_leaves_the_earlier_one_unknown(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        zombie, successor = taken_over(store, clock, key)
        before = held(store, key)
        clock.advance(5)
        assert store.release(successor) is True
        unknown = replace(before, owner="", lease_until_ms=clock.now_ms)
        assert store.get(key) == unknown
        for lease in (zombie, successor):
            self.can_do_nothing(store, lease)
        assert occupied(claim(store, key, "c")) == unknown, "it is lapsed at once, and not free"
        assert occupied(claim(store, key, "c", fingerprint="v1:other", takeover=True)) == unknown
        assert granted(claim(store, key, "c", takeover=True)).attempt == 3
