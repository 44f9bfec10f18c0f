"""Random histories of few keys with many repeats: every reply is the memory store's, and work runs as often.

With a steady front by two handles with hints, so that one's copies are the other's to forget. With an unsteady one by
one handle without them: what a failover brings back, only the process that removed the record does not believe.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from semel import Acquired, Key, Lease, Occupied, Result, open_async_store, open_store
from semel.store import Removable, Resolvable, Store
from semel.stores.memory import MemoryStore
from semel.testing import BlockingStore, ManualClock
from stores.tiered_cases import UnsteadyFront, copy_at_once, counted_answers, tiered_url

SEED = int(os.environ.get("SEMEL_SEED", "20"))
LIVES = 25
"""After so many steps a new key takes the place of an old one: a key that was removed is not copied for a while."""
LEASE_MS, RETENTION_MS, REFUSE_MS = 30_000, 3_600_000, 60_000
STEPS = 700
OPENERS: dict[str, Callable[[str, ManualClock], Store]] = {
    "threads": lambda url, clock: open_store(url, clock=clock),
    "tasks": lambda url, clock: BlockingStore(open_async_store(url, clock=clock)),
}


class History:
    """Asks a handle and the model the same, and compares."""

    def __init__(self, handles: list[Store], clock: ManualClock, chance: random.Random) -> None:
        self.handles, self.clock, self.chance = handles, clock, chance
        self.model = MemoryStore(clock=clock)
        self.leases: dict[Key, Lease] = {}
        self.effects: Counter[str] = Counter()
        self.owners = 0

    def both(self, ask: Callable[[Any], Any]) -> Any:
        expected, found = ask(self.model), ask(self.chance.choice(self.handles))
        assert found == expected
        return found

    def step(self, number: int) -> None:
        key = Key("shop", "POST /payments", f"order-{number // LIVES + self.chance.randrange(3)}")
        kind = self.chance.choices(*zip(*WEIGHTS.items(), strict=True))[0]
        kind(self, key)

    def claim(self, key: Key) -> None:
        self.owners += 1
        owner, fingerprint = f"owner {self.owners}", self.chance.choice(["same"] * 4 + ["other"])
        takeover = self.chance.random() < 0.3
        terms: dict[str, Any] = {"lease_ms": LEASE_MS, "retention_ms": RETENTION_MS, "takeover": takeover}
        claimed = self.both(lambda store: store.claim(key, fingerprint, owner=owner, **terms))
        if isinstance(claimed, Acquired):
            self.leases[key] = claimed.lease
            self.effects["work"] += 1
        else:
            assert isinstance(claimed, Occupied)
            self.effects[claimed.record.state.value] += 1

    def complete(self, key: Key) -> None:
        if (lease := self.leases.get(key)) is not None:
            result = Result("raw", b"\xff%d" % self.owners, ok=self.chance.random() < 0.8)
            kept: dict[str, Any] = {"retention_ms": RETENTION_MS, "refuse_ms": self.chance.choice([0, REFUSE_MS])}
            self.both(lambda store: store.complete(lease, result, **kept))

    def release(self, key: Key) -> None:
        if (lease := self.leases.get(key)) is not None:
            self.both(lambda store: store.release(lease))

    def renew(self, key: Key) -> None:
        if (lease := self.leases.get(key)) is not None:
            lease_ms = self.chance.choice([0, LEASE_MS])
            self.both(lambda store: store.renew(lease, lease_ms=lease_ms))

    def resolve(self, key: Key) -> None:
        if (seen := self.both(lambda store: store.get(key))) is not None:
            result = self.chance.choice([None, Result("raw", b"resolved")])

            def resolve(store: Store) -> bool:
                assert isinstance(store, Resolvable | MemoryStore)
                return store.resolve(seen, result, retention_ms=RETENTION_MS)

            self.both(resolve)

    def end(self, key: Key) -> None:
        if (seen := self.both(lambda store: store.get(key))) is not None:
            expire = self.chance.random() < 0.5

            def end(store: Store) -> bool:
                assert isinstance(store, Removable)
                return store.expire(seen) if expire else store.remove(seen)

            self.both(end)

    def wait(self, _: Key) -> None:
        self.clock.advance(self.chance.choice([1, LEASE_MS, REFUSE_MS, RETENTION_MS - REFUSE_MS - LEASE_MS]))

    def purge(self, _: Key) -> None:
        self.both(lambda store: store.purge(limit=100))


WEIGHTS: dict[Callable[[History, Key], None], int] = {
    History.claim: 60,
    History.complete: 15,
    History.release: 4,
    History.renew: 4,
    History.resolve: 3,
    History.end: 4,
    History.wait: 6,
    History.purge: 1,
}


@pytest.fixture(params=[False, True], ids=["steady", "unsteady"])
def is_unsteady(request: pytest.FixtureRequest) -> bool:
    unsteady: bool = request.param
    return unsteady


@pytest.fixture
def url(redis_url: str, tmp_path: Path, is_unsteady: bool) -> Iterator[str]:
    with ExitStack() as stack:
        stack.enter_context(redis.Redis.from_url(redis_url)).flushdb()
        front, options = redis_url, {"hint_ms": 5_000, "front_timeout_ms": 30_000}
        if is_unsteady:
            front = stack.enter_context(UnsteadyFront(redis_url, SEED).running())
            options = {"front_timeout_ms": 2_000, "rest_ms": 1}
        yield tiered_url(front, f"sqlite:///{tmp_path}/records.db", **options)


@pytest.mark.parametrize("face", OPENERS)
def test_every_reply_is_the_model_s(face: str, url: str, is_unsteady: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_at_once(monkeypatch)
    clock = ManualClock()
    handles = [OPENERS[face](url, clock) for _ in range(1 if is_unsteady else 2)]
    history = History(handles, clock, random.Random(SEED))
    with counted_answers() as answers:
        for number in range(STEPS):
            history.step(number)
    for handle in handles:
        handle.close()
    assert history.effects["work"] > 20
    assert answers["succeeded"] + answers["failed"] > 3
    assert is_unsteady or answers["in_progress"] > 3
