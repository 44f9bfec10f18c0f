"""Parity: random histories of calls, answered by the store and by the model, must read the same at every step."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from semel.core.records import NOBODY, Acquired, Key, Lease, Record, Result, State
from semel.store import Counts, Filter, Inspectable, Removable, Resolvable, StateFilter, Store
from semel.stores.memory import MemoryStore
from semel.testing.clock import DAY_MS, ManualClock
from semel.testing.handles import Handles
from semel.testing.samples import PURGE_ALL

numbers = st.integers(0, 2)  # which of the keys
owners = st.sampled_from("abc")
fingerprints = st.sampled_from(["v1:x", "v1:x", "v1:x", "v1:y"])
lease_times = st.sampled_from([1, 5, 10])
retention_times = st.sampled_from([3, 10, 25])
refuse_times = st.sampled_from([0, 0, 4, 15])
ticks = st.integers(1, 12)
results = st.builds(Result, st.sampled_from(["x", "y"]), st.sampled_from([b"", b"0", b"one"]), st.booleans())
scopes = st.sampled_from([None, "s", "t"])
removals = st.sampled_from(["remove", "expire"])
prefixes = st.sampled_from(["", "nn", "N"])
states: st.SearchStrategy[StateFilter | None] = st.sampled_from([None, "in_progress", "unknown", "succeeded", "failed"])


class History(RuleBasedStateMachine):
    """One history, in a tenant of its own. All share a store: what came before is past retention, and purged."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__()
        clock.advance(DAY_MS)
        while store.purge(limit=PURGE_ALL):
            pass
        self.store, self.model, self.clock = store, MemoryStore(clock=clock), clock
        tenant = f"tenant-{uuid4().hex}"
        self.keys = [Key(tenant, "s", "n"), Key(tenant, "s", "nn"), Key(f"{tenant}2", "s", "n")]
        self.last_seen: dict[int, Record] = {}

    def both(self, call: str, *args: Any, **kwargs: Any) -> Any:
        """Ask both, and expect the same reply."""
        reply, expected = getattr(self.store, call)(*args, **kwargs), getattr(self.model, call)(*args, **kwargs)
        assert reply == expected, f"{call} at {self.clock.now_ms}: the store says {reply}, the model {expected}"
        return reply

    @rule(
        number=numbers,
        fingerprint=fingerprints,
        owner=owners,
        lease_ms=lease_times,
        retention_ms=retention_times,
        takeover=st.booleans(),
    )
    def claim(self, number: int, **kwargs: Any) -> None:
        claimed = self.both("claim", self.keys[number], kwargs.pop("fingerprint"), **kwargs)
        assert not isinstance(claimed, Acquired) or claimed.lease.owner == kwargs["owner"]

    @rule(number=numbers, owner=owners, lease_ms=lease_times)
    def renew(self, number: int, owner: str, lease_ms: int) -> None:
        self.both("renew", self.lease(number, owner), lease_ms=lease_ms)

    @rule(number=numbers, owner=owners, result=results, retention_ms=retention_times, refuse_ms=refuse_times)
    def complete(self, number: int, owner: str, result: Result, retention_ms: int, refuse_ms: int) -> None:
        self.both("complete", self.lease(number, owner), result, retention_ms=retention_ms, refuse_ms=refuse_ms)

    @rule(number=numbers, owner=owners)
    def release(self, number: int, owner: str) -> None:
        self.both("release", self.lease(number, owner))

    @rule(
        number=numbers,
        owner=owners | st.just(NOBODY),
        attempt=st.integers(1, 3),
        result=st.none() | results,
        retention_ms=retention_times,
    )
    def resolve(self, number: int, owner: str, attempt: int, result: Result | None, retention_ms: int) -> None:
        """The operator may have looked at the record as it is, or as it was."""
        if isinstance(self.store, Resolvable):
            never = Record(self.keys[number], "1", State.IN_PROGRESS, owner, attempt, 0, 0, 0)
            seen = replace(self.last_seen.get(number, never), owner=owner, attempt=attempt)
            self.both("resolve", seen, result, retention_ms=retention_ms)

    @rule(number=numbers, result=st.none() | results, retention_ms=retention_times)
    def resolve_what_is_there(self, number: int, result: Result | None, retention_ms: int) -> None:
        seen = self.model.get(self.keys[number])
        if seen is not None and isinstance(self.store, Resolvable):
            self.both("resolve", seen, result, retention_ms=retention_ms)

    @rule(call=removals, number=numbers, later_ms=st.sampled_from([0, 0, 1]))
    def remove_what_is_there(self, call: str, number: int, later_ms: int) -> None:
        seen = self.model.get(self.keys[number])
        if seen is not None and isinstance(self.store, Removable):
            self.both(call, replace(seen, created_ms=seen.created_ms + later_ms))

    @rule(call=removals, number=numbers, owner=owners | st.just(NOBODY), attempt=st.integers(1, 3))
    def remove_what_was_there(self, call: str, number: int, owner: str, attempt: int) -> None:
        seen = self.model.get(self.keys[number])
        if seen is not None and isinstance(self.store, Removable):
            self.both(call, replace(seen, owner=owner, attempt=attempt))

    @rule(limit=st.sampled_from([1, 2, PURGE_ALL]))
    def purge(self, limit: int) -> None:
        """Which records a small purge chooses is the store's affair, so the rest is purged at once."""
        first = self.store.purge(limit=limit)
        assert first <= limit
        assert first + self.store.purge(limit=PURGE_ALL) == self.model.purge(limit=PURGE_ALL)

    @rule(by_ms=ticks)
    def tick(self, by_ms: int) -> None:
        self.clock.advance(by_ms)

    @rule(number=numbers, to=st.sampled_from(["lease_until_ms", "expires_ms"]), short_ms=st.integers(0, 1))
    def tick_to_a_boundary(self, number: int, to: str, short_ms: int) -> None:
        record = self.model.get(self.keys[number])
        if record is not None:
            self.clock.advance(max(0, getattr(record, to) - short_ms - self.clock.now_ms))

    @rule(state=states, number=numbers, scope=scopes, prefix=prefixes, age_ms=ticks)
    def scan(self, state: StateFilter | None, number: int, scope: str | None, prefix: str, age_ms: int) -> None:
        if isinstance(self.store, Inspectable):
            chosen = Filter(state, self.keys[number].tenant, scope, prefix, age_ms)
            assert pages(self.store, chosen, limit=1) == pages(self.model, chosen, limit=PURGE_ALL)

    @invariant()
    def the_same_is_there(self) -> None:
        for number, key in enumerate(self.keys):
            if (record := self.both("get", key)) is not None:
                self.last_seen[number] = record

    @rule()
    def the_same_is_shown(self) -> None:
        if isinstance(self.store, Inspectable):
            assert pages(self.store, Filter(), limit=100) == pages(self.model, Filter(), limit=100)
            self.same_counts(self.store.counts(), self.model.counts())

    def same_counts(self, counts: Counts, expected: Counts) -> None:
        assert (counts.in_progress, counts.unknown) == (expected.in_progress, expected.unknown)
        if counts.exact:
            assert counts == expected

    def lease(self, number: int, owner: str) -> Lease:
        """The caller may hold the key, may have held it, or may never have: only the owner counts."""
        return Lease(self.keys[number], owner, 1, 0)


def pages(store: Inspectable, chosen: Filter, *, limit: int) -> list[Record]:
    """All records that match, which must be shown once, in an order that does not depend on the store."""
    found: dict[tuple[str, str, str], Record] = {}
    cursor: str | None = None
    while True:
        page = store.scan(chosen, cursor=cursor, limit=limit)
        assert len(page.records) <= limit
        for record in page.records:
            name = record.key.tenant, record.key.scope, record.key.name
            assert name not in found, f"{name} was shown twice"
            found[name] = record
        assert page.cursor is None or page.cursor != cursor, f"the cursor {cursor} leads back to itself"
        cursor = page.cursor
        if cursor is None:
            return [found[name] for name in sorted(found)]


class Parity(Handles):
    def test_every_history_reads_like_the_model_s(self, store: Store, clock: ManualClock) -> None:
        class HistoryHere(History):
            def __init__(self) -> None:
                super().__init__(store, clock)

        run_state_machine_as_test(
            HistoryHere,
            settings=settings(
                max_examples=self.parity_examples,
                stateful_step_count=self.parity_steps,
                deadline=None,
                database=None,
                report_multiple_bugs=False,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            ),
        )
