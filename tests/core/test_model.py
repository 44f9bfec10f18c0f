"""What a store does, transition by transition, with its boundaries. Granting a claim is in `test_tables`."""

import pytest
from msgspec.structs import replace

from core.life import (
    ANSWER,
    FAILED,
    LEASE_MS,
    LIVE,
    OTHER,
    REFUSAL,
    RETENTION_MS,
    SAME,
    SECOND,
    SUCCEEDED,
    claim_by,
    lease_of,
)
from semel.core import model
from semel.core.effects import Complete, Release, Renew, Resolve
from semel.core.records import NOBODY, Acquired, Occupied, Record, Result

LAPSED_MS = 40
FREED = replace(SECOND, owner=NOBODY, lease_until_ms=50)
"""Taken over by `second`, who gave it back at 50."""


class TestRepeatedClaim:
    @pytest.mark.parametrize("now_ms", [0, LEASE_MS - 1, LEASE_MS, RETENTION_MS - 1])
    @pytest.mark.parametrize("takeover", [False, True])
    def test_the_owner_gets_its_lease_again_unchanged(self, now_ms: int, takeover: bool) -> None:
        assert model.claim(LIVE, claim_by("first", takeover=takeover), now_ms) == (LIVE, Acquired(LIVE.lease))

    def test_not_with_another_request(self) -> None:
        assert model.claim(LIVE, claim_by("first", OTHER), 1) == (LIVE, Occupied(LIVE, 1))

    def test_not_past_retention(self) -> None:
        new, _ = model.claim(LIVE, claim_by("first"), RETENTION_MS)
        assert (new.created_ms, new.attempt) == (RETENTION_MS, 1)

    def test_not_after_its_completion(self) -> None:
        assert model.claim(SUCCEEDED, claim_by("first"), 11) == (SUCCEEDED, Occupied(SUCCEEDED, 11))


class TestRead:
    @pytest.mark.parametrize(("old", "end_ms"), [(LIVE, 1_000), (SUCCEEDED, 1_010), (FREED, 1_040)])
    def test_a_record_is_owed_until_the_end_of_its_retention(self, old: Record, end_ms: int) -> None:
        assert model.read(old, end_ms - 1) is old
        assert model.read(old, end_ms) is None

    def test_nothing_is_nothing(self) -> None:
        assert model.read(None, 0) is None


class TestRenew:
    @pytest.mark.parametrize("now_ms", [0, 10, LEASE_MS, LAPSED_MS, RETENTION_MS])
    def test_the_owner_extends_its_lease_however_late(self, now_ms: int) -> None:
        new, lease = model.renew(LIVE, Renew(lease_of("first"), 100), now_ms)
        assert new == replace(LIVE, lease_until_ms=now_ms + 100)
        assert lease == new.lease

    def test_a_live_lease_never_expires(self) -> None:
        new, _ = model.renew(LIVE, Renew(lease_of("first"), 100), RETENTION_MS - 1)
        assert model.read(new, RETENTION_MS + 98) == new
        assert model.read(new, RETENTION_MS + 99) is None

    @pytest.mark.parametrize("old", [None, SECOND, SUCCEEDED, FAILED, FREED])
    def test_nobody_else_does(self, old: Record | None) -> None:
        assert model.renew(old, Renew(lease_of("first"), 100), 20) == (old, None)


class TestComplete:
    @pytest.mark.parametrize("now_ms", [10, LEASE_MS, LAPSED_MS])
    def test_stores_the_result_and_ends_the_lease_however_late(self, now_ms: int) -> None:
        new, done = model.complete(LIVE, Complete(lease_of("first"), ANSWER, 500), now_ms)
        assert done
        assert new == replace(SUCCEEDED, completed_ms=now_ms, lease_until_ms=now_ms, expires_ms=now_ms + 500)

    def test_a_failure_is_an_answer_too(self) -> None:
        assert model.complete(LIVE, Complete(lease_of("first"), REFUSAL, RETENTION_MS), 10) == (FAILED, True)

    def test_a_repeat_keeps_the_first_result_and_is_told_that_it_is_done(self) -> None:
        assert model.complete(SUCCEEDED, Complete(lease_of("first"), REFUSAL, 9_999), 20) == (SUCCEEDED, True)

    @pytest.mark.parametrize(
        "old", [None, SECOND, FREED, replace(SUCCEEDED, owner="second"), replace(SUCCEEDED, owner=NOBODY)]
    )
    def test_a_superseded_owner_changes_nothing(self, old: Record | None) -> None:
        assert model.complete(old, Complete(lease_of("first"), ANSWER, RETENTION_MS), 60) == (old, False)


class TestRelease:
    @pytest.mark.parametrize("now_ms", [10, LEASE_MS, LAPSED_MS])
    def test_the_first_attempt_leaves_nothing(self, now_ms: int) -> None:
        assert model.release(LIVE, Release(lease_of("first")), now_ms) == (None, True)

    def test_a_later_attempt_leaves_the_earlier_one_unknown(self) -> None:
        assert model.release(SECOND, Release(lease_of("second", 2)), 50) == (FREED, True)

    def test_what_a_later_attempt_left_can_be_taken_over_but_not_granted_afresh(self) -> None:
        assert model.claim(FREED, claim_by("third"), 50) == (FREED, Occupied(FREED, 50))
        new, _ = model.claim(FREED, claim_by("third", takeover=True), 50)
        assert (new.owner, new.attempt) == ("third", 3)

    @pytest.mark.parametrize("old", [None, SECOND, SUCCEEDED, FAILED, FREED])
    def test_a_result_or_another_owner_is_never_removed(self, old: Record | None) -> None:
        assert model.release(old, Release(lease_of("first")), 20) == (old, False)


def resolution(seen: Record, result: Result | None) -> Resolve:
    return Resolve(seen.key, seen.owner, seen.attempt, result, RETENTION_MS)


class TestResolve:
    def test_with_what_was_found_out(self) -> None:
        new, done = model.resolve(LIVE, resolution(LIVE, ANSWER), LEASE_MS)
        assert done
        assert new == replace(SUCCEEDED, owner=NOBODY, completed_ms=30, lease_until_ms=30, expires_ms=1_030)

    def test_with_nothing_done(self) -> None:
        assert model.resolve(LIVE, resolution(LIVE, None), LEASE_MS) == (None, True)
        assert model.resolve(FREED, resolution(FREED, None), 50) == (None, True)

    @pytest.mark.parametrize(
        ("old", "seen", "now_ms"),
        [
            (None, LIVE, 50),
            (LIVE, LIVE, LEASE_MS - 1),
            (LIVE, replace(LIVE, attempt=2), 50),
            (LIVE, replace(LIVE, owner="another"), 50),
            (SECOND, LIVE, 80),
            (SUCCEEDED, LIVE, 50),
            (FAILED, LIVE, 50),
        ],
    )
    def test_only_the_lapsed_attempt_that_was_looked_at(self, old: Record | None, seen: Record, now_ms: int) -> None:
        for result in (ANSWER, None):
            assert model.resolve(old, resolution(seen, result), now_ms) == (old, False)

    def test_a_resolution_meant_for_one_lapse_does_not_hit_a_later_one(self) -> None:
        """An operator looks at the lapsed attempt of `first` and finds that nothing was done; before he says so …"""
        freed, _ = model.release(LIVE, Release(lease_of("first")), 40)
        later, _ = model.claim(freed, claim_by("second"), 50)  # … another one pays, crashes and lapses
        after, done = model.resolve(later, resolution(LIVE, None), 50 + LEASE_MS)
        assert (after, done) == (later, False), "the payment of `second` would be repeated"

    def test_the_late_owner_is_fenced_off(self) -> None:
        resolved, _ = model.resolve(LIVE, resolution(LIVE, ANSWER), LEASE_MS)
        assert model.complete(resolved, Complete(lease_of("first"), REFUSAL, RETENTION_MS), 60) == (resolved, False)
        assert model.renew(resolved, Renew(lease_of("first"), LEASE_MS), 60) == (resolved, None)
        assert model.release(resolved, Release(lease_of("first")), 60) == (resolved, False)


class TestWhatTheDesignDoesNotPromise:
    """Each of these is a limit that the documentation has to name; a change here is a change of the guarantees."""

    def test_an_unknown_outcome_blocks_for_the_retention_after_its_claim_and_no_longer(self) -> None:
        renewed, _ = model.renew(LIVE, Renew(lease_of("first"), LEASE_MS), RETENTION_MS - 1)
        new, reply = model.claim(renewed, claim_by("late"), RETENTION_MS - 1 + LEASE_MS)
        assert isinstance(reply, Acquired), "work that outlives its retention and then lapses is forgotten at once"
        assert new.attempt == 1

    def test_the_fencing_token_starts_again_when_somebody_says_that_nothing_was_done(self) -> None:
        freed, _ = model.resolve(SECOND, resolution(SECOND, None), 70)
        new, _ = model.claim(freed, claim_by("third", SAME), 80)
        assert new.attempt == 1, "who resolves with nothing done vouches for every attempt before"


class TestPurge:
    REFUSED = replace(SUCCEEDED, refuse_ms=500)

    @pytest.mark.parametrize(("record", "now_ms"), [(LIVE, 999), (SUCCEEDED, 1_009), (REFUSED, 1_009)])
    def test_what_is_owed_stays(self, record: Record, now_ms: int) -> None:
        assert model.purge(record, now_ms) == (record, False)

    @pytest.mark.parametrize(("record", "now_ms"), [(LIVE, 1_000), (SUCCEEDED, 1_010), (REFUSED, 1_510)])
    def test_what_is_past_retention_goes(self, record: Record, now_ms: int) -> None:
        assert model.purge(record, now_ms) == (None, True)

    def test_a_key_that_is_only_refused_loses_its_result(self) -> None:
        tombstone = replace(SUCCEEDED, result=None, expires_ms=1_510)
        assert model.purge(self.REFUSED, 1_010) == (tombstone, True)
        assert model.purge(tombstone, 1_010) == (tombstone, False)
