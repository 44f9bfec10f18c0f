"""Removable: a finished or lapsed record is deleted from outside, and only the one that was looked at."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from semel.core.records import Key, Record, Result
from semel.store import Removable, Store
from semel.testing.calls import claim, complete, granted, held, occupied, taken_over
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.resolution import resolve
from semel.testing.samples import ANSWER, LEASE_MS, PURGE_ALL, REFUSAL, RETENTION_MS, SECOND_ANSWER


class Removal(Handles):
    @pytest.mark.parametrize("result", [ANSWER, REFUSAL], ids=["succeeded", "failed"])
    def test_a_finished_record_is_removed_and_the_key_is_new_again(
        self, store: Store, key: Key, result: Result
    ) -> None:
        assert complete(store, granted(claim(store, key, "a")), result)
        assert remove(store, held(store, key)) is True
        assert store.get(key) is None
        assert granted(claim(store, key, "b")).attempt == 1

    def test_a_lapsed_record_is_removed_and_its_late_owner_fenced_off(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        lease = granted(claim(store, key, "a"))
        clock.advance(LEASE_MS)
        assert remove(store, held(store, key)) is True
        assert store.renew(lease, lease_ms=LEASE_MS) is None
        assert complete(store, lease) is False
        assert store.get(key) is None

    def test_a_live_lease_is_not_removed(self, store: Store, clock: ManualClock, key: Key) -> None:
        granted(claim(store, key, "a"))
        seen = held(store, key)
        clock.advance(LEASE_MS - 1)
        assert remove(store, seen) is False
        assert store.get(key) == seen

    def test_a_lease_that_came_back_to_life_is_not_removed(self, store: Store, clock: ManualClock, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        clock.advance(LEASE_MS)
        seen = held(store, key)
        assert store.renew(lease, lease_ms=LEASE_MS)
        assert remove(store, seen) is False
        assert held(store, key).in_progress()

    def test_a_result_that_came_after_the_look_is_not_removed(self, store: Store, clock: ManualClock, key: Key) -> None:
        """An operator that forgets an unknown outcome has not decided to forget the answer that came meanwhile."""
        lease = granted(claim(store, key, "a"))
        clock.advance(LEASE_MS)
        seen = held(store, key)
        assert complete(store, lease)
        assert remove(store, seen) is False
        assert held(store, key).result == ANSWER

    def test_another_attempt_is_not_removed(self, store: Store, clock: ManualClock, key: Key) -> None:
        _, successor = taken_over(store, clock, key)
        assert complete(store, successor)
        before = held(store, key)
        for other in (replace(before, attempt=1), replace(before, attempt=3), replace(before, owner="zombie")):
            assert remove(store, other) is False
        assert store.get(key) == before

    def test_what_came_after_the_key_was_freed_is_not_removed(self, store: Store, clock: ManualClock, key: Key) -> None:
        """Resolved records have no owner and count from 1 again: only their times tell them apart."""
        seen = self.resolved(store, clock, key, ANSWER)
        assert remove(store, seen)
        clock.advance(1)
        after = self.resolved(store, clock, key, SECOND_ANSWER)
        assert (seen.owner, seen.attempt) == (after.owner, after.attempt)
        assert remove(store, seen) is False
        assert remove(store, replace(after, created_ms=seen.created_ms)) is False
        assert remove(store, replace(after, completed_ms=seen.completed_ms)) is False
        assert remove(store, replace(after, completed_ms=None)) is False
        assert store.get(key) == after

    def test_nothing_else_is_removed(self, store: Store, key: Key) -> None:
        others = [replace(key, tenant=f"{key.tenant}2"), replace(key, scope="GET /"), replace(key, name="key2")]
        for each in (key, *others):
            assert complete(store, granted(claim(store, each, "a")))
        assert remove(store, held(store, key)) is True
        assert [store.get(each) is None for each in (key, *others)] == [True, False, False, False]

    def test_an_absent_record_is_not_removed(self, store: Store, key: Key) -> None:
        assert complete(store, granted(claim(store, key, "a")))
        seen = held(store, key)
        assert remove(store, seen) is True
        assert remove(store, seen) is False

    def test_a_finished_record_is_expired_and_the_key_is_new_again(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        assert complete(store, granted(claim(store, key, "a")))
        assert expire(store, held(store, key)) is True
        assert store.get(key) is None
        assert store.purge(limit=PURGE_ALL) >= 1
        assert granted(claim(store, key, "b")).attempt == 1

    def test_a_key_that_is_refused_after_retention_is_refused_once_it_is_expired(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        assert store.complete(granted(claim(store, key, "a")), ANSWER, retention_ms=RETENTION_MS, refuse_ms=100)
        assert expire(store, held(store, key)) is True
        assert not held(store, key).answers(clock.now_ms)
        occupied(claim(store, key, "b"))
        clock.advance(100)
        assert granted(claim(store, key, "b")).attempt == 1

    def test_what_is_not_finished_is_not_expired(self, store: Store, clock: ManualClock, key: Key) -> None:
        """An unknown outcome is resolved by an operator that knows it, not by forgetting."""
        granted(claim(store, key, "a"))
        before = held(store, key)
        for _ in range(2):
            assert expire(store, before) is False
            assert store.get(key) == before
            clock.advance(LEASE_MS)

    def test_only_what_was_looked_at_is_expired(self, store: Store, key: Key) -> None:
        assert complete(store, granted(claim(store, key, "a")))
        before = held(store, key)
        assert before.completed_ms is not None
        for other in (
            replace(before, owner="b"),
            replace(before, attempt=2),
            replace(before, created_ms=before.created_ms - 1),
            replace(before, completed_ms=before.completed_ms - 1),
        ):
            assert expire(store, other) is False
        assert store.get(key) == before

    def resolved(self, store: Store, clock: ManualClock, key: Key, result: Result) -> Record:
        granted(claim(store, key, "a"))
        clock.advance(LEASE_MS)
        assert resolve(store, held(store, key), result)
        return held(store, key)


def remove(store: Store, seen: Record) -> bool:
    if not isinstance(store, Removable):
        pytest.skip("the store cannot remove")
    return store.remove(seen)


def expire(store: Store, seen: Record) -> bool:
    if not isinstance(store, Removable):
        pytest.skip("the store cannot remove")
    return store.expire(seen)
