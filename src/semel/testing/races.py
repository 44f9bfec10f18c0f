"""Many callers on one key at once: exactly one wins, the others are shown the winner, and the effects are counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest
from msgspec.structs import replace

from semel.core.records import Acquired, Claimed, Key, Lease, Occupied, Result
from semel.store import Store
from semel.testing.calls import claim, complete, granted, held
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.samples import LEASE_MS, PURGE_ALL, RETENTION_MS

T = TypeVar("T")
CALLERS = 8
SITUATIONS = {"absent": 1, "lapsed": 2, "expired": 1}
"""What the callers find, and the attempt that the winner gets."""
every_situation = pytest.mark.parametrize("situation", SITUATIONS)


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Run all of them in threads that start together."""
    barrier = threading.Barrier(len(works))

    def start(work: Callable[[], T]) -> T:
        barrier.wait(10)
        return work()

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(start, works))


def prepare(store: Store, clock: ManualClock, situation: str, keys: Sequence[Key]) -> None:
    """Bring `keys` into a situation in which a claim with take-over is granted."""
    if situation == "absent":
        return
    for key in keys:
        granted(claim(store, key, "earlier", retention_ms=RETENTION_MS if situation == "lapsed" else LEASE_MS))
    clock.advance(LEASE_MS)


def the_winner(replies: Sequence[Claimed], attempt: int) -> Lease:
    """Exactly one claim was granted, and all other callers were shown its owner."""
    leases = [reply.lease for reply in replies if isinstance(reply, Acquired)]
    assert len(leases) == 1, f"{len(leases)} of {len(replies)} callers won: {leases}"
    assert leases[0].attempt == attempt
    others = {(reply.record.owner, reply.record.attempt) for reply in replies if isinstance(reply, Occupied)}
    assert others <= {(leases[0].owner, attempt)}
    return leases[0]


class Races(Handles):
    @every_situation
    def test_of_many_callers_one_wins(self, store: Store, clock: ManualClock, key: Key, situation: str) -> None:
        keys = [replace(key, name=f"{number}") for number in range(self.race_rounds)]
        prepare(store, clock, situation, keys)
        for each in keys:
            self.race(each, [store] * CALLERS, SITUATIONS[situation])

    @every_situation
    def test_of_many_callers_on_two_handles_one_wins(
        self, store: Store, another: Store, clock: ManualClock, key: Key, situation: str
    ) -> None:
        keys = [replace(key, name=f"{number}") for number in range(self.race_rounds)]
        prepare(store, clock, situation, keys)
        for each in keys:
            self.race(each, [store, another] * (CALLERS // 2), SITUATIONS[situation])

    def race(self, key: Key, handles: Sequence[Store], attempt: int) -> None:
        effects: list[str] = []

        def work(store: Store, owner: str) -> Claimed:
            claimed = claim(store, key, owner, takeover=True)
            if isinstance(claimed, Acquired):
                effects.append(owner)
            return claimed

        replies = at_once([partial(work, store, f"{number}") for number, store in enumerate(handles)])
        winner = the_winner(replies, attempt)
        assert effects == [winner.owner]
        assert held(handles[0], key).lease == winner

    def test_a_zombie_and_its_successor_complete_one_result(self, store: Store, clock: ManualClock, key: Key) -> None:
        """Either the take-over was first or the result, never both."""
        for number in range(self.race_rounds):
            zombie = granted(claim(store, replace(key, name=f"{number}"), "zombie"))
            clock.advance(LEASE_MS)
            by_zombie = partial(complete, store, zombie, Result("by", b"zombie"))
            stored, taken = at_once([by_zombie, partial(take_over_and_complete, store, zombie.key)])
            assert [stored, taken].count(True) == 1
            assert held(store, zombie.key).result == Result("by", b"zombie" if stored else b"successor")

    def test_completes_of_one_owner_at_once_store_one_result(self, store: Store, key: Key) -> None:
        answers = [Result("number", b"%d" % number) for number in range(CALLERS)]
        for number in range(self.race_rounds):
            lease = granted(claim(store, replace(key, name=f"{number}"), "a"))
            replies = at_once([partial(complete, store, lease, answer) for answer in answers])
            assert replies == [True] * CALLERS
            first = held(store, lease.key)
            assert first.result in answers
            assert complete(store, lease)
            assert store.get(lease.key) == first

    def test_a_release_and_claims_at_once_have_one_winner(self, store: Store, key: Key) -> None:
        for number in range(self.race_rounds):
            lease = granted(claim(store, replace(key, name=f"{number}"), "first"))
            works: list[Callable[[], object]] = [partial(claim, store, lease.key, f"{n}") for n in range(CALLERS)]
            works.append(partial(store.release, lease))
            *replies, released = at_once(works)
            assert released is True
            assert sum(isinstance(reply, Acquired) for reply in replies) <= 1

    def test_purge_never_deletes_a_record_that_was_claimed_again(
        self, store: Store, clock: ManualClock, key: Key
    ) -> None:
        """The record is past retention when purge looks, and a new one when it deletes."""
        keys = [replace(key, name=f"{number}") for number in range(5)]
        for _ in range(self.race_rounds):
            prepare(store, clock, "expired", keys)
            works: list[Callable[[], object]] = [partial(claim, store, each, "new") for each in keys]
            works.append(partial(store.purge, limit=PURGE_ALL))
            *replies, _ = at_once(works)
            assert all(isinstance(reply, Acquired) for reply in replies)
            assert [held(store, each).owner for each in keys] == ["new"] * 5
            clock.advance(RETENTION_MS)


def take_over_and_complete(store: Store, key: Key) -> bool:
    claimed = claim(store, key, "successor", takeover=True)
    return isinstance(claimed, Acquired) and complete(store, claimed.lease, Result("by", b"successor"))
