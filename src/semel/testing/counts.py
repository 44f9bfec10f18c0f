"""AttemptCounting: how often a handler failed on a message, for each message, until that is forgotten."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from semel.core.records import Key
from semel.store import AttemptCounting, Inspectable, Store
from semel.testing.calls import claim, granted
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.samples import PURGE_ALL, RETENTION_MS


class AttemptCounts(Handles):
    def test_every_failure_of_a_message_counts_one(self, store: Store, key: Key) -> None:
        assert [count(store, key) for _ in range(3)] == [1, 2, 3]

    def test_messages_are_counted_apart(self, store: Store, key: Key) -> None:
        others = [replace(key, **{part: f"another {part}"}) for part in ("tenant", "scope", "name")]
        assert [count(store, each) for each in (key, *others, key)] == [1, 1, 1, 1, 2]

    def test_every_handle_counts_on(self, store: Store, another: Store, key: Key) -> None:
        assert [count(each, key) for each in (store, another, store)] == [1, 2, 3]

    def test_a_count_is_forgotten_after_its_retention(self, store: Store, clock: ManualClock, key: Key) -> None:
        assert [count(store, key), count(store, key)] == [1, 2]
        clock.advance(RETENTION_MS - 1)
        assert count(store, key) == 3
        clock.advance(RETENTION_MS)
        assert count(store, key) == 1

    def test_a_purge_forgets_only_what_is_past_its_retention(self, store: Store, clock: ManualClock, key: Key) -> None:
        later = replace(key, name="later")
        count(store, key)
        clock.advance(RETENTION_MS - 1)
        count(store, later)
        clock.advance(1)
        store.purge(limit=PURGE_ALL)
        assert [count(store, later), count(store, key)] == [2, 1]

    def test_a_count_is_no_record(self, store: Store, key: Key) -> None:
        count(store, key)
        assert store.get(key) is None
        assert granted(claim(store, key, "a")).attempt == 1
        assert count(store, key) == 2
        if isinstance(store, Inspectable):
            assert not [seen for seen in store.scan(limit=PURGE_ALL).unreadable if key.name in seen.place]
            assert store.counts().unreadable == 0

    @pytest.mark.parametrize("error", ["", "x" * 5_000, "a\0b", "\udc80", "ünïcode"], ids=ascii)
    def test_any_error_can_be_kept(self, store: Store, key: Key, error: str) -> None:
        assert count(store, key, error) == 1
        assert count(store, key, error) == 2


def count(store: Store, key: Key, error: str = "it burnt") -> int:
    if not isinstance(store, AttemptCounting):
        pytest.skip("the store does not count attempts")
    return store.count_attempt(key, error, retention_ms=RETENTION_MS)
