"""Resolvable: an unknown outcome is ended from outside, once, and only the attempt that was looked at."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from semel.core.records import Key, Record, Result
from semel.store import Resolvable, Store
from semel.testing.calls import claim, complete, granted, held, occupied, taken_over
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.samples import ANSWER, LEASE_MS, REFUSAL, RETENTION_MS, SECOND_ANSWER


class Resolution(Handles):
    @pytest.mark.parametrize("result", [ANSWER, REFUSAL], ids=["succeeded", "failed"])
    def test_an_unknown_outcome_is_resolved_with_what_was_found_out(
        self, store: Store, clock: ManualClock, key: Key, result: Result
    ) -> None:
        granted(claim(store, key, "a"))
        before = held(store, key)
        clock.advance(LEASE_MS)
        assert resolve(store, before, result, retention_ms=11) is True
        assert store.get(key) == replace(
            before,
            state=result.state,
            owner="",
            result=result,
            completed_ms=clock.now_ms,
            lease_until_ms=clock.now_ms,
            expires_ms=clock.now_ms + 11,
        )
        assert occupied(claim(store, key, "b")).result == result

    def test_an_unknown_outcome_is_resolved_because_nothing_was_done(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        granted(claim(store, key, "a"))
        clock.advance(LEASE_MS)
        assert resolve(store, held(store, key), None) is True
        assert store.get(key) is None
        assert granted(claim(store, key, "b")).attempt == 1

    def test_a_later_attempt_is_resolved_because_nothing_was_done(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        _, successor = taken_over(store, clock, key)
        assert store.release(successor)
        assert resolve(store, held(store, key), None) is True
        assert store.get(key) is None

    @pytest.mark.parametrize("result", [ANSWER, None], ids=["result", "nothing done"])
    def test_the_late_owner_is_fenced_off(
        self, store: Store, clock: ManualClock, key: Key, result: Result | None
    ) -> None:
        lease = granted(claim(store, key, "a"))
        clock.advance(LEASE_MS)
        assert resolve(store, held(store, key), result)
        before = store.get(key)
        assert store.renew(lease, lease_ms=LEASE_MS) is None
        assert complete(store, lease, SECOND_ANSWER) is False
        assert store.release(lease) is False
        assert store.get(key) == before

    @pytest.mark.parametrize("result", [ANSWER, None], ids=["result", "nothing done"])
    def test_a_live_lease_is_not_resolved(
        self, store: Store, clock: ManualClock, key: Key, result: Result | None
    ) -> None:
        granted(claim(store, key, "a"))
        before = held(store, key)
        clock.advance(LEASE_MS - 1)
        assert resolve(store, before, result) is False
        assert store.get(key) == before

    @pytest.mark.parametrize("result", [ANSWER, None], ids=["result", "nothing done"])
    def test_another_attempt_than_the_one_looked_at_is_not_resolved(
        self, store: Store, clock: ManualClock, key: Key, result: Result | None
    ) -> None:
        taken_over(store, clock, key)
        clock.advance(LEASE_MS)
        before = held(store, key)
        for attempt in (1, 3):
            assert resolve(store, replace(before, attempt=attempt), result) is False
        assert store.get(key) == before

    @pytest.mark.parametrize("result", [ANSWER, None], ids=["result", "nothing done"])
    def test_what_was_looked_at_before_the_key_was_freed_is_not_resolved(
        self, store: Store, clock: ManualClock, key: Key, result: Result | None
    ) -> None:
        """Attempt numbers start again when a key is freed: an operator's old look must not resolve the new attempt."""
        lease = granted(claim(store, key, "a"))
        clock.advance(LEASE_MS)
        seen = held(store, key)
        assert store.release(lease)
        granted(claim(store, key, "b"))
        clock.advance(LEASE_MS)
        before = held(store, key)
        assert (seen.attempt, before.attempt) == (1, 1)
        assert resolve(store, seen, result) is False
        assert store.get(key) == before

    @pytest.mark.parametrize("result", [SECOND_ANSWER, None], ids=["result", "nothing done"])
    def test_a_result_is_never_resolved_away(
        self, store: Store, clock: ManualClock, key: Key, result: Result | None
    ) -> None:
        assert complete(store, granted(claim(store, key, "a")))
        before = held(store, key)
        clock.advance(LEASE_MS)
        assert resolve(store, before, result) is False
        assert store.get(key) == before

    def test_an_absent_key_is_not_resolved(self, store: Store, clock: ManualClock, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        clock.advance(LEASE_MS)
        seen = held(store, key)
        assert store.release(lease)
        assert resolve(store, seen, ANSWER) is False
        assert store.get(key) is None


def resolve(store: Store, seen: Record, result: Result | None, *, retention_ms: int = RETENTION_MS) -> bool:
    if not isinstance(store, Resolvable):
        pytest.skip("the store cannot resolve")
    return store.resolve(seen, result, retention_ms=retention_ms)
