"""Leases are kept alive while their work runs: by a thread, or by a timer of the event loop."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

import semel.runtime.keeper
from semel.core.records import Acquired, Key, Lease, Occupied
from semel.errors import StoreUnavailable
from semel.runtime.keeper import QUANTUM_S, RENEW_PART, Keeper, Kept, Rounds, Wheel
from semel.stores.memory import MemoryStore
from test_local import in_a_child
from waiting import until

LEASE_MS = 45


def lease(number: int = 0) -> Lease:
    return Lease(Key("tenant", "scope", f"key {number}"), "owner", 1, 0)


class Renewals(MemoryStore):
    """Counts renewals by name; says no for those in `lost`, and fails for those in `failing`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, float, int]] = []
        self.lost: set[str] = set()
        self.failing: set[str] = set()
        self.free = threading.Event()
        self.free.set()

    def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        name = lease.key.name
        self.asked.append((name, time.monotonic(), threading.get_ident()))
        self.free.wait(10)
        if name in self.failing:
            raise StoreUnavailable("away")
        return None if name in self.lost else Lease(lease.key, lease.owner, lease.attempt, lease.until_ms + 1)

    def count(self, number: int = 0) -> int:
        return sum(name == f"key {number}" for name, _, _ in self.asked)


@pytest.fixture
def store() -> Iterator[Renewals]:
    store = Renewals()
    yield store
    store.free.set()


class TestThread:
    def test_renews_when_a_third_of_the_lease_has_passed(self, store: Renewals) -> None:
        keeper = Keeper(store)
        started_s = time.monotonic()
        kept = keeper.keep(lease(), lease_ms=LEASE_MS)
        until(lambda: store.count() >= 4)
        keeper.stop(kept)
        passed_s = [at_s - started_s for _, at_s, _ in store.asked[:4]]
        for number, each_s in enumerate(passed_s, 1):
            assert each_s >= number * (LEASE_MS / 3000 - QUANTUM_S)
        assert kept.lease.until_ms >= 4, "the newest lease is the one that counts"
        assert not kept.lost

    def test_one_thread_for_all(self, store: Renewals) -> None:
        keeper = Keeper(store)
        all_kept = [keeper.keep(lease(number), lease_ms=LEASE_MS) for number in range(200)]
        until(lambda: all(store.count(number) >= 2 for number in range(200)))
        for kept in all_kept:
            keeper.stop(kept)
        assert len({thread for _, _, thread in store.asked}) == 1

    def test_a_shorter_lease_is_not_kept_waiting_by_a_longer_one(self, store: Renewals) -> None:
        keeper = Keeper(store)
        long = keeper.keep(lease(1), lease_ms=60_000)
        time.sleep(0.03)  # the thread sleeps for the long one by now
        short = keeper.keep(lease(2), lease_ms=LEASE_MS)
        until(lambda: store.count(2) >= 2)
        assert store.count(1) == 0
        keeper.stop(long)
        keeper.stop(short)

    def test_nothing_is_sent_after_a_stop(self, store: Renewals) -> None:
        keeper = Keeper(store)
        stopped, other = keeper.keep(lease(1), lease_ms=LEASE_MS), keeper.keep(lease(2), lease_ms=LEASE_MS)
        keeper.stop(stopped)
        begun = store.count(2)
        until(lambda: store.count(2) >= begun + 2)  # by the same thread: whatever was on its way has been sent
        sent = store.count(1)
        until(lambda: store.count(2) >= begun + 5)
        keeper.stop(other)
        assert store.count(1) == sent

    @pytest.mark.parametrize("reply", ["lost", "failing"])
    def test_a_reply_that_comes_after_the_stop_is_not_listened_to(self, store: Renewals, reply: str) -> None:
        keeper, told = Keeper(store), list[str]()
        getattr(store, reply).add("key 0")
        store.free.clear()
        kept = keeper.keep(lease(), lease_ms=LEASE_MS, on_lost=lambda: told.append("lost"))
        until(lambda: store.count() == 1)
        keeper.stop(kept)
        store.free.set()
        other = keeper.keep(lease(1), lease_ms=LEASE_MS)
        until(lambda: store.count(1) >= 2)
        keeper.stop(other)
        assert (kept.lost, told, store.count()) == (False, [], 1)
        assert wheel_of(keeper).next_s() is None, "and it is not kept any longer"

    def test_what_was_stopped_while_its_renewal_was_on_its_way_is_not_kept_again(self, store: Renewals) -> None:
        rounds, kept = Rounds(store), Kept(lease(), 60_000, None)
        kept.stopped = True
        rounds.add(kept, RENEW_PART)
        assert rounds._wheel.next_s() is None

    def test_a_loss_reaches_the_work_once(self, store: Renewals) -> None:
        keeper, told = Keeper(store), list[str]()
        store.lost.add("key 0")
        kept = keeper.keep(lease(), lease_ms=LEASE_MS, on_lost=lambda: told.append("lost"))
        other = keeper.keep(lease(1), lease_ms=LEASE_MS)
        until(lambda: store.count(1) >= 3)
        keeper.stop(other)
        keeper.stop(kept)
        assert (kept.lost, told, store.count()) == (True, ["lost"], 1)

    def test_a_loss_without_a_listener(self, store: Renewals) -> None:
        keeper = Keeper(store)
        store.lost.add("key 0")
        kept = keeper.keep(lease(), lease_ms=LEASE_MS)
        until(lambda: kept.lost)

    def test_a_store_that_fails_is_asked_again_and_the_others_are_kept(self, store: Renewals) -> None:
        keeper = Keeper(store)
        store.failing.add("key 0")
        kept, other = keeper.keep(lease(), lease_ms=LEASE_MS), keeper.keep(lease(1), lease_ms=LEASE_MS)
        until(lambda: store.count() >= 3 and store.count(1) >= 2)
        assert not kept.lost, "nobody said no"
        store.failing.clear()
        until(lambda: kept.lease.until_ms > 0)
        keeper.stop(kept)
        keeper.stop(other)

    def test_a_listener_that_fails_does_not_end_the_keeper(self, store: Renewals) -> None:
        def on_lost() -> None:
            raise RuntimeError("the work's own mistake")

        keeper = Keeper(store)
        store.lost.add("key 0")
        lost = keeper.keep(lease(), lease_ms=LEASE_MS, on_lost=on_lost)
        other = keeper.keep(lease(1), lease_ms=LEASE_MS)
        until(lambda: lost.lost and store.count(1) >= 2)
        keeper.stop(other)
        assert store.count() == 1

    def test_the_thread_ends_when_there_is_nothing_to_keep_and_starts_again(
        self, store: Renewals, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(semel.runtime.keeper, "IDLE_S", 0.01)
        keeper = Keeper(store)
        for round_number in (1, 2):
            kept = keeper.keep(lease(round_number), lease_ms=LEASE_MS)
            thread = keeper._rounds.get()._thread
            assert thread is not None
            assert thread.daemon
            until(lambda number=round_number: store.count(number) >= 1)  # type: ignore[misc]
            keeper.stop(kept)
            until(lambda ended=thread: not ended.is_alive())  # type: ignore[misc]
            assert keeper._rounds.get()._thread is None

    def test_work_that_comes_while_the_thread_is_idle(self, store: Renewals) -> None:
        keeper = Keeper(store)
        keeper.stop(keeper.keep(lease(1), lease_ms=1))
        time.sleep(0.02)
        kept = keeper.keep(lease(2), lease_ms=LEASE_MS)
        until(lambda: store.count(2) >= 1)
        keeper.stop(kept)


class TestFork:
    def test_a_child_has_its_own_thread_and_leaves_the_parents_leases_alone(self, store: Renewals) -> None:
        keeper = Keeper(store)
        kept = keeper.keep(lease(1), lease_ms=LEASE_MS)
        until(lambda: store.count(1) >= 1)

        def child() -> bool:
            before = store.count(1)
            mine = keeper.keep(lease(2), lease_ms=LEASE_MS)
            until(lambda: store.count(2) >= 3)
            keeper.stop(mine)
            return store.count(1) == before

        assert in_a_child(child)
        before = store.count(1)
        until(lambda: store.count(1) > before)
        keeper.stop(kept)

    def test_stopping_the_parents_lease_in_a_child_never_blocks(self, store: Renewals) -> None:
        keeper = Keeper(store)
        kept = keeper.keep(lease(), lease_ms=60_000)
        with keeper._rounds.get()._changed:  # as if the thread held it at the moment of the fork

            def child() -> bool:
                keeper.stop(kept)
                return kept.stopped

            assert in_a_child(child)
        assert not kept.stopped
        keeper.stop(kept)


def test_a_kept_lease_is_never_taken_over_and_a_stopped_one_is() -> None:
    store = MemoryStore()
    keeper = Keeper(store)
    key = Key("tenant", "scope", os.urandom(4).hex())

    def claim(owner: str) -> Acquired | Occupied:
        return store.claim(key, "1.f", owner=owner, lease_ms=60, retention_ms=60_000, takeover=True)

    first = claim("first")
    assert isinstance(first, Acquired)
    kept = keeper.keep(first.lease, lease_ms=60)
    until(lambda: kept.lease.until_ms >= first.lease.until_ms + 150)
    record = store.get(key)
    assert record is not None
    assert record.owner == "first"
    keeper.stop(kept)
    until(lambda: isinstance(claim("second"), Acquired))
    assert store.renew(kept.lease, lease_ms=60) is None


def wheel_of(keeper: Keeper) -> Wheel:
    return keeper._rounds.get()._wheel


class Counted(threading.Condition):
    """How often somebody was to be woken."""

    woken = 0

    def notify(self, n: int = 1) -> None:
        self.woken += 1
        super().notify(n)


def test_only_a_lease_that_is_due_before_the_next_look_wakes_the_thread(store: Renewals) -> None:
    keeper = Keeper(store)
    rounds = keeper._rounds.get()
    rounds._changed = changed = Counted()
    first = keeper.keep(lease(1), lease_ms=60_000)
    until(lambda: rounds._looks_s > 0)
    for _ in range(100):  # each of them the only one: short work under a long lease
        keeper.stop(first)
        first = keeper.keep(lease(1), lease_ms=60_000)
    assert changed.woken == 0
    soon = keeper.keep(lease(2), lease_ms=LEASE_MS)
    assert changed.woken == 1
    until(lambda: store.count(2) >= 2)
    keeper.stop(first)
    keeper.stop(soon)


class TestWheel:
    def kept(self) -> Kept:
        return Kept(lease(), LEASE_MS, None)

    def test_what_is_due_comes_out_once_and_by_lane_in_order(self) -> None:
        wheel, early, late, other = Wheel(), self.kept(), self.kept(), self.kept()
        assert wheel.add(early, 0.0, 1.0) == 1.0
        assert wheel.add(other, 0.0, 0.5) == 0.5
        assert wheel.add(late, 1.0, 1.0) == 2.0
        assert wheel.take_due(0.4) == []
        assert wheel.next_s() == 0.5
        assert wheel.take_due(0.9) == [other]
        assert wheel.next_s() == 1.0
        assert wheel.take_due(3.0) == [early, late]
        assert wheel.take_due(3.0) == []
        assert wheel.next_s() is None

    def test_what_falls_due_together_goes_out_together_and_never_late(self) -> None:
        wheel, some = Wheel(), [self.kept() for _ in range(3)]
        for number, each in enumerate(some):
            wheel.add(each, number * 0.003, 1.0)
        wheel.add(self.kept(), QUANTUM_S + 0.001, 1.0)
        assert wheel.take_due(1.0) == some

    def test_a_lease_that_rests_shortly_is_not_due_as_soon_as_it_is_renewed(self) -> None:
        wheel, short = Wheel(), self.kept()
        wheel.add(short, 0.0, QUANTUM_S / 2)
        assert wheel.take_due(0.0) == []
        assert wheel.next_s() == QUANTUM_S / 2
        assert wheel.take_due(QUANTUM_S / 2) == [short]

    def test_what_left_its_lane_does_not_come_out(self) -> None:
        wheel, gone, other = Wheel(), self.kept(), self.kept()
        wheel.add(gone, 0.0, 1.0)
        wheel.add(other, 4.0, 1.0)
        for _ in range(2):
            gone.lane.pop(gone, None)
        assert wheel.next_s() == 5.0
        assert wheel.take_due(9.0) == [other]
        assert other not in other.lane

    def test_a_lease_that_is_not_kept_is_stopped_without_harm(self, store: Renewals) -> None:
        keeper, kept = Keeper(store), self.kept()
        keeper.stop(kept)
        assert kept.stopped

    def test_it_does_not_grow_with_what_came_and_went(self) -> None:
        wheel = Wheel()
        for number in range(1_000):
            kept = self.kept()
            wheel.add(kept, number / 100, 1.0 + number)
            kept.lane.pop(kept)
            wheel.next_s()
        assert not wheel._lanes
