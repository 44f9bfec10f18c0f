"""Inspectable: what operators see. Every record that matches is shown exactly once, however small the pages."""

from __future__ import annotations

from enum import Enum

import pytest
from msgspec.structs import replace

from semel.core.records import Key, Record
from semel.errors import RecordUnreadable
from semel.store import Counts, Filter, Inspectable, StateFilter, Store, UnreadableRecord
from semel.testing.calls import claim, complete, granted
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.parity import pages
from semel.testing.samples import LEASE_MS, PURGE_ALL, REFUSAL, RETENTION_MS

STATES: tuple[StateFilter, ...] = ("unknown", "in_progress", "succeeded", "failed")


class FilterWord(str, Enum):  # noqa: UP042
    """Text that some drivers send as the name of the member."""

    SCOPE = "GET /"
    PREFIX = "pa"


class Inspection(Handles):
    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
    def test_every_record_is_shown_once_whatever_the_page(self, store: Store, key: Key, limit: int) -> None:
        inspect = require_inspectable(store)
        names = [f"{number}" for number in range(7)] + ["é", "É", "z%", "{z}", "\U0010ffff"]
        scopes = ("", "a", "a\nb", "B")
        for number, name in enumerate(names):
            granted(claim(store, Key(key.tenant, scopes[number % 4], name), "a"))
        expected = {Key(key.tenant, scopes[number % 4], name) for number, name in enumerate(names)}
        found = pages(inspect, Filter(tenant=key.tenant), limit=limit)
        assert len(found) == len(expected)
        assert {record.key for record in found} == expected

    def test_what_is_shown_is_the_record(self, store: Store, key: Key) -> None:
        inspect = require_inspectable(store)
        assert complete(store, granted(claim(store, key, "a")), REFUSAL)
        assert inspect.scan(Filter(tenant=key.tenant)).records == (store.get(key),)

    @pytest.mark.parametrize("state", STATES)
    def test_records_by_state(self, store: Store, clock: ManualClock, key: Key, state: StateFilter) -> None:
        inspect = require_inspectable(store)
        self.one_in_each_state(store, clock, key)
        assert names(inspect, Filter(state, key.tenant)) == [state]
        clock.advance(LEASE_MS - 1)
        assert names(inspect, Filter(state, key.tenant)) == [state]
        clock.advance(1)  # the live one lapses
        both = ["in_progress", "unknown"]
        assert names(inspect, Filter(state, key.tenant)) == {"unknown": both, "in_progress": []}.get(state, [state])

    def test_records_by_tenant_scope_and_prefix(self, store: Store, key: Key) -> None:
        inspect = require_inspectable(store)
        other = replace(key, tenant=f"{key.tenant}-other")
        for each in (
            key,
            other,
            replace(key, scope="GET /"),
            replace(key, name="a%b"),
            replace(key, name="a_c"),
            replace(key, name="A"),
        ):
            granted(claim(store, each, "a"))
        assert names(inspect, Filter(tenant=other.tenant)) == ["key"]
        assert names(inspect, Filter(tenant=key.tenant, scope="GET /")) == ["key"]
        assert names(inspect, Filter(tenant=key.tenant, scope=key.scope)) == ["A", "a%b", "a_c", "key"]
        for prefix, found in {
            "a": ["a%b", "a_c"],
            "a%": ["a%b"],
            "a_": ["a_c"],
            "A": ["A"],
            "*": [],
            "k": ["key", "key"],
        }.items():
            assert names(inspect, Filter(tenant=key.tenant, name_prefix=prefix)) == found, prefix

    def test_records_by_text_of_a_subclass(self, store: Store, key: Key) -> None:
        inspect = require_inspectable(store)
        granted(claim(store, Key(key.tenant, "GET /", "part"), "a"))
        assert names(inspect, Filter(tenant=key.tenant, scope=FilterWord.SCOPE, name_prefix=FilterWord.PREFIX)) == [
            "part"
        ]

    def test_records_by_age(self, store: Store, clock: ManualClock, key: Key) -> None:
        inspect = require_inspectable(store)
        granted(claim(store, key, "a"))
        clock.advance(9)
        assert names(inspect, Filter(tenant=key.tenant, older_than_ms=10)) == []
        clock.advance(1)
        assert names(inspect, Filter(tenant=key.tenant, older_than_ms=10)) == ["key"]

    def test_records_by_the_time_of_their_creation(self, store: Store, clock: ManualClock, key: Key) -> None:
        """For following what is new. The time is the store's, which a page tells."""
        inspect = require_inspectable(store)
        for name in ("old", "renewed"):
            assert complete(store, granted(claim(store, replace(key, name=name), "a")))
        clock.advance(RETENTION_MS - 1)
        granted(claim(store, replace(key, name="before"), "a"))
        clock.advance(1)
        now_ms = inspect.scan(Filter(tenant=key.tenant)).now_ms
        assert now_ms is not None
        assert complete(store, granted(claim(store, replace(key, name="new"), "a")))
        granted(claim(store, replace(key, name="renewed"), "a"))  # its first record is past retention
        clock.advance(1)
        granted(claim(store, replace(key, name="newer"), "a"))
        for tenant in (key.tenant, None):
            chosen = Filter(tenant=tenant, scope=key.scope, created_from_ms=now_ms)
            found = pages(inspect, chosen, limit=1)
            ours = sorted(record.key.name for record in found if record.key.tenant == key.tenant)
            assert ours == ["new", "newer", "renewed"]
        for state, expected in {"succeeded": ["new"], "in_progress": ["newer", "renewed"], "unknown": []}.items():
            assert names(inspect, Filter(state, key.tenant, created_from_ms=now_ms)) == expected  # type: ignore[arg-type]
        assert names(inspect, Filter(tenant=key.tenant, older_than_ms=1, created_from_ms=now_ms)) == ["new", "renewed"]

    def test_a_page_tells_the_time_of_the_store(self, store: Store, clock: ManualClock, key: Key) -> None:
        inspect = require_inspectable(store)
        assert inspect.scan(Filter(tenant=key.tenant)).now_ms == clock.now_ms, "also when there is no record"
        granted(claim(store, key, "a"))
        clock.advance(7)
        assert inspect.scan(Filter(tenant=key.tenant)).now_ms == clock.now_ms

    def test_records_past_retention_are_neither_shown_nor_counted(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        inspect = require_inspectable(store)
        self.one_in_each_state(store, clock, key)
        clock.advance(RETENTION_MS)
        assert pages(inspect, Filter(tenant=key.tenant), limit=10) == []
        counts = inspect.counts()
        assert (counts.in_progress, counts.unknown) == (0, 0)
        if counts.exact:
            assert as_numbers(counts) == (0, 0, 0, 0)

    def test_a_live_lease_past_its_retention_is_shown_and_counted(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        inspect = require_inspectable(store)
        store.purge(limit=PURGE_ALL)
        granted(claim(store, key, "a", retention_ms=1))
        clock.advance(LEASE_MS - 1)
        assert names(inspect, Filter("in_progress", key.tenant)) == ["key"]
        assert inspect.counts().in_progress == 1

    def test_counts_by_state(self, store: Store, clock: ManualClock, key: Key) -> None:
        inspect = require_inspectable(store)
        store.purge(limit=PURGE_ALL)
        self.one_in_each_state(store, clock, key)
        granted(claim(store, replace(key, name="another"), "a"))
        counts = inspect.counts()
        assert (counts.in_progress, counts.unknown) == (2, 1)
        clock.advance(LEASE_MS)
        counts = inspect.counts()
        assert (counts.in_progress, counts.unknown) == (0, 3)
        if counts.exact:
            assert as_numbers(counts) == (0, 3, 1, 1)

    @pytest.mark.parametrize("limit", [1, 2, 3, 100])
    def test_one_record_that_cannot_be_read_stops_nobody(self, store: Store, key: Key, limit: int) -> None:
        """It is named and counted, and its key is still refused: it is never treated as absent."""
        inspect = require_inspectable(store)
        store.purge(limit=PURGE_ALL)
        keys = [replace(key, name=f"name-{number}") for number in range(7)]
        for each in keys:
            granted(claim(store, each, "a"))
        before = inspect.counts()
        mend = self.spoil(keys[3])
        if mend is None:
            pytest.skip("this test has no way to spoil a record of the store")
        try:
            found: list[str] = []
            unreadable: list[UnreadableRecord] = []
            cursor, looks = None, 0
            while looks == 0 or cursor is not None:
                page = inspect.scan(Filter(tenant=key.tenant), cursor=cursor, limit=limit)
                assert len(page.records) + len(page.unreadable) <= limit
                found += [record.key.name for record in page.records]
                unreadable += page.unreadable
                cursor, looks = page.cursor, looks + 1
            assert sorted(found) == [f"name-{number}" for number in (0, 1, 2, 4, 5, 6)]
            assert len(unreadable) == 1, "it is named, once"
            one = unreadable[0]
            assert one.place
            assert one.reason
            assert "name-3" not in one.place + one.reason, "lists and logs show no names"
            counts = inspect.counts()
            assert (counts.in_progress, counts.unreadable) == (before.in_progress - 1, before.unreadable + 1)
            assert len(pages(inspect, Filter("in_progress", key.tenant), limit=limit)) == 6
            for ask in (lambda: claim(store, keys[3], "b"), lambda: store.get(keys[3])):
                with pytest.raises(RecordUnreadable):
                    ask()
        finally:
            mend()

    @pytest.mark.parametrize("cursor", ["", "nonsense", "bm9uc2Vuc2U="])
    def test_a_cursor_of_somebody_else_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(ValueError, match="cursor"):
            require_inspectable(store).scan(cursor=cursor)

    def one_in_each_state(self, store: Store, clock: ManualClock, key: Key) -> None:
        """Named after what they are."""
        granted(claim(store, replace(key, name="unknown"), "a"))
        clock.advance(LEASE_MS)
        for name in STATES[1:]:
            lease = granted(claim(store, replace(key, name=name), "a"))
            if name == "succeeded":
                assert complete(store, lease)
            elif name == "failed":
                assert complete(store, lease, REFUSAL)


def require_inspectable(store: Store) -> Inspectable:
    if not isinstance(store, Inspectable):
        pytest.skip("the store cannot be inspected")
    return store


def names(store: Inspectable, chosen: Filter) -> list[str]:
    found: list[Record] = pages(store, chosen, limit=10)
    return sorted(record.key.name for record in found)


def as_numbers(counts: Counts) -> tuple[int, int, int, int]:
    return counts.in_progress, counts.unknown, counts.succeeded, counts.failed
