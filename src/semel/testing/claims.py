"""What a claim finds out: the table of the design, row by row, on both sides of every boundary."""

from __future__ import annotations

import pytest

from semel.core.records import Acquired, Key, Lease, Occupied, Record, Result, State
from semel.store import Store
from semel.testing.calls import claim, complete, granted, held, occupied
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.samples import ANSWER, LEASE_MS, OTHER, REFUSAL, RETENTION_MS, SAME

either_request = pytest.mark.parametrize("fingerprint", [SAME, OTHER])
either_guarantee = pytest.mark.parametrize("takeover", [False, True], ids=["at-most-once", "at-least-once"])
either_answer = pytest.mark.parametrize("result", [ANSWER, REFUSAL], ids=["succeeded", "failed"])


class Claims(Handles):
    @either_guarantee
    def test_an_absent_key_is_granted(self, store: Store, clock: ManualClock, key: Key, takeover: bool) -> None:
        now_ms = clock.now_ms
        claimed = claim(store, key, "a", lease_ms=7, retention_ms=11, takeover=takeover)
        assert claimed == Acquired(Lease(key, "a", 1, now_ms + 7))
        assert store.get(key) == Record(key, SAME, State.IN_PROGRESS, "a", 1, now_ms, now_ms + 7, now_ms + 11)

    @either_request
    @either_guarantee
    def test_a_live_lease_keeps_everybody_else_out(
        self, store: Store, clock: ManualClock, key: Key, fingerprint: str, takeover: bool
    ) -> None:
        granted(claim(store, key, "a"))
        before = held(store, key)
        clock.advance(LEASE_MS - 1)
        claimed = claim(store, key, "b", fingerprint=fingerprint, takeover=takeover)
        assert claimed == Occupied(before, clock.now_ms)
        assert store.get(key) == before

    def test_a_lapsed_lease_is_taken_over_at_the_very_moment_of_its_end(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        granted(claim(store, key, "a"))
        created_ms = clock.now_ms
        clock.advance(LEASE_MS)
        now_ms = clock.now_ms
        claimed = claim(store, key, "b", lease_ms=7, retention_ms=11, takeover=True)
        assert claimed == Acquired(Lease(key, "b", 2, now_ms + 7))
        assert store.get(key) == Record(key, SAME, State.IN_PROGRESS, "b", 2, created_ms, now_ms + 7, now_ms + 11)

    @pytest.mark.parametrize(("fingerprint", "takeover"), [(SAME, False), (OTHER, False), (OTHER, True)])
    def test_a_lapsed_lease_is_otherwise_unknown_or_a_mismatch(
        self, store: Store, clock: ManualClock, key: Key, fingerprint: str, takeover: bool
    ) -> None:
        granted(claim(store, key, "a"))
        before = held(store, key)
        for wait_ms in (LEASE_MS, RETENTION_MS - LEASE_MS - 1):
            clock.advance(wait_ms)
            claimed = claim(store, key, "b", fingerprint=fingerprint, takeover=takeover)
            assert claimed == Occupied(before, clock.now_ms)
            assert store.get(key) == before

    @either_answer
    @either_request
    @either_guarantee
    def test_a_finished_key_shows_its_result(
        self, store: Store, clock: ManualClock, key: Key, fingerprint: str, takeover: bool, result: Result
    ) -> None:
        assert complete(store, granted(claim(store, key, "a")), result)
        before = held(store, key)
        for wait_ms in (0, RETENTION_MS - 1):
            clock.advance(wait_ms)
            claimed = claim(store, key, "b", fingerprint=fingerprint, takeover=takeover)
            assert claimed == Occupied(before, clock.now_ms)
            assert occupied(claimed).result == result
            assert store.get(key) == before

    @either_answer
    @either_request
    @either_guarantee
    def test_a_finished_key_is_granted_anew_at_the_end_of_its_retention(
        self, store: Store, clock: ManualClock, key: Key, fingerprint: str, takeover: bool, result: Result
    ) -> None:
        assert complete(store, granted(claim(store, key, "a")), result)
        clock.advance(RETENTION_MS)
        self.grants_anew(store, clock, key, fingerprint, takeover)

    @either_request
    @either_guarantee
    def test_an_unknown_outcome_is_granted_anew_at_the_end_of_its_retention(
        self, store: Store, clock: ManualClock, key: Key, fingerprint: str, takeover: bool
    ) -> None:
        granted(claim(store, key, "a"))
        clock.advance(RETENTION_MS)
        self.grants_anew(store, clock, key, fingerprint, takeover)

    def grants_anew(self, store: Store, clock: ManualClock, key: Key, fingerprint: str, takeover: bool) -> None:
        """Nothing of the old record is left, its attempts included."""
        now_ms = clock.now_ms
        assert granted(claim(store, key, "b", fingerprint=fingerprint, takeover=takeover)).attempt == 1
        assert store.get(key) == Record(
            key, fingerprint, State.IN_PROGRESS, "b", 1, now_ms, now_ms + LEASE_MS, now_ms + RETENTION_MS
        )

    def test_every_take_over_has_a_greater_attempt(self, store: Store, clock: ManualClock, key: Key) -> None:
        attempts = []
        for owner in "abcde":
            attempts.append(granted(claim(store, key, owner, takeover=True)).attempt)
            clock.advance(LEASE_MS)
        assert attempts == [1, 2, 3, 4, 5]

    @either_guarantee
    def test_an_owner_that_repeats_its_claim_gets_its_lease_back(
        self, store: Store, clock: ManualClock, key: Key, takeover: bool
    ) -> None:
        lease = granted(claim(store, key, "a"))
        before = held(store, key)
        for wait_ms in (
            0,
            LEASE_MS - 1,
            1,
            RETENTION_MS - LEASE_MS - 1,
        ):  # live, nearly lapsed, lapsed, nearly past retention
            clock.advance(wait_ms)
            claimed = claim(store, key, "a", lease_ms=7, retention_ms=RETENTION_MS * 2, takeover=takeover)
            assert claimed == Acquired(lease)
            assert store.get(key) == before

    def test_an_owner_that_repeats_its_claim_past_retention_begins_anew(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        granted(claim(store, key, "a"))
        clock.advance(RETENTION_MS)
        assert granted(claim(store, key, "a")) == Lease(key, "a", 1, clock.now_ms + LEASE_MS)
        assert held(store, key).created_ms == clock.now_ms

    @either_guarantee
    def test_an_owner_with_another_request_is_a_mismatch_with_itself(
        self, store: Store, clock: ManualClock, key: Key, takeover: bool
    ) -> None:
        granted(claim(store, key, "a"))
        before = held(store, key)
        for wait_ms in (0, LEASE_MS):
            clock.advance(wait_ms)
            assert occupied(claim(store, key, "a", fingerprint=OTHER, takeover=takeover)) == before

    @either_guarantee
    def test_an_owner_that_repeats_its_claim_after_completing_is_shown_the_result(
        self, store: Store, key: Key, takeover: bool
    ) -> None:
        assert complete(store, granted(claim(store, key, "a")))
        assert occupied(claim(store, key, "a", takeover=takeover)).result == ANSWER
