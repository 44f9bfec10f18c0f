"""Leases kept by the event loop. The loop's clock jumps to the next timer, so that nothing here takes real time."""

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from semel.core.records import Key, Lease
from semel.errors import StoreUnavailable
from semel.runtime.keeper import QUANTUM_S, AsyncKeeper
from semel.stores.memory import AsyncMemoryStore

LEASE_MS = 30_000


class Jumping(selectors.SelectSelector):
    """Does not sleep: the clock goes on by as much as it was asked to wait."""

    now_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += timeout or 0
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(main)


def lease(number: int = 0) -> Lease:
    return Lease(Key("tenant", "scope", f"key {number}"), "owner", 1, 0)


class Renewals(AsyncMemoryStore):
    """Remembers when each lease was renewed; says no for those in `lost`, and fails for those in `failing`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, float]] = []
        self.lost: set[str] = set()
        self.failing: set[str] = set()
        self.held: asyncio.Event | None = None

    async def renew(self, lease: Lease, *, lease_ms: int) -> Lease | None:
        name = lease.key.name
        self.asked.append((name, asyncio.get_running_loop().time()))
        if self.held is not None:
            await self.held.wait()
        if name in self.failing:
            raise StoreUnavailable("away")
        return None if name in self.lost else Lease(lease.key, lease.owner, lease.attempt, lease.until_ms + 1)

    def times(self, number: int = 0) -> list[float]:
        return [round(at_s - 1_000, 1) for name, at_s in self.asked if name == f"key {number}"]


def timers() -> int:
    loop: Any = asyncio.get_running_loop()
    return sum(not handle.cancelled() for handle in loop._scheduled)


def test_renews_when_a_third_of_the_lease_has_passed() -> None:
    async def main() -> None:
        store = Renewals()
        keeper = AsyncKeeper(store)
        kept = keeper.keep(lease(), lease_ms=LEASE_MS)
        await asyncio.sleep(35)
        keeper.stop(kept)
        assert store.times() == [10.0, 20.0, 30.0]
        assert (kept.lease.until_ms, kept.lost) == (3, False)

    run(main())


def test_many_leases_cost_one_timer() -> None:
    async def main() -> None:
        store = Renewals()
        keeper = AsyncKeeper(store)
        before = timers()
        all_kept = [keeper.keep(lease(number), lease_ms=LEASE_MS + number) for number in range(2_000)]
        assert timers() - before == 1
        await asyncio.sleep(11)
        assert timers() - before == 1
        assert all(len(store.times(number)) == 1 for number in range(2_000))
        for kept in all_kept:
            keeper.stop(kept)
        await asyncio.sleep(60)
        assert timers() - before == 0
        assert len(store.asked) == 2_000
        assert keeper._rounds.get()._wheel.next_s() is None

    run(main())


def test_a_shorter_lease_is_not_kept_waiting_by_a_longer_one() -> None:
    async def main() -> None:
        store = Renewals()
        keeper = AsyncKeeper(store)
        keeper.keep(lease(1), lease_ms=LEASE_MS)
        await asyncio.sleep(1)
        keeper.keep(lease(2), lease_ms=6_000)
        await asyncio.sleep(10)
        assert (store.times(1), store.times(2)) == ([10.0], [3.0, 5.0, 7.0, 9.0, 11.0][: len(store.times(2))])
        assert len(store.times(2)) >= 4

    run(main())


def test_nothing_is_sent_after_a_stop_not_even_at_the_moment_it_falls_due() -> None:
    async def main() -> None:
        store = Renewals()
        keeper = AsyncKeeper(store)
        kept = keeper.keep(lease(), lease_ms=LEASE_MS)
        rounds = keeper._rounds.get()
        await asyncio.sleep(9.5)
        jumping: Any = asyncio.get_running_loop()
        jumping.jumping.now_s += 1
        rounds._fire()  # the renewal is a task that has not begun
        keeper.stop(kept)
        await asyncio.sleep(60)
        assert store.asked == []

    run(main())


@pytest.mark.parametrize("reply", ["lost", "failing", "renewed"])
def test_a_reply_that_comes_after_the_stop_is_not_listened_to(reply: str) -> None:
    async def main() -> None:
        store, told = Renewals(), list[str]()
        store.held = asyncio.Event()
        getattr(store, reply, set[str]()).add("key 0")
        keeper = AsyncKeeper(store)
        kept = keeper.keep(lease(), lease_ms=LEASE_MS, on_lost=lambda: told.append("lost"))
        await asyncio.sleep(10.5)
        keeper.stop(kept)
        store.held.set()
        await asyncio.sleep(0.1)
        assert keeper._rounds.get()._wheel.next_s() is None, "it is not kept again"
        await asyncio.sleep(60)
        assert (kept.lost, told, store.times(), kept.lease.until_ms) == (False, [], [10.0], 0)

    run(main())


def test_a_loss_reaches_the_work_once() -> None:
    async def main() -> None:
        store, told = Renewals(), list[str]()
        store.lost.add("key 0")
        keeper = AsyncKeeper(store)
        kept = keeper.keep(lease(), lease_ms=LEASE_MS, on_lost=lambda: told.append("lost"))
        await asyncio.sleep(60)
        keeper.stop(kept)
        assert (kept.lost, told, store.times()) == (True, ["lost"], [10.0])

    run(main())


def test_a_store_that_fails_is_asked_again_sooner_and_the_others_are_kept() -> None:
    async def main() -> None:
        store = Renewals()
        store.failing.add("key 0")
        keeper = AsyncKeeper(store)
        kept = keeper.keep(lease(), lease_ms=LEASE_MS)
        keeper.keep(lease(1), lease_ms=LEASE_MS)
        await asyncio.sleep(17)
        store.failing.clear()
        await asyncio.sleep(14)
        assert store.times() == [10.0, 13.0, 16.0, 19.0, 29.0]
        assert store.times(1) == [10.0, 20.0, 30.0]
        assert not kept.lost

    run(main())


def test_a_renewal_that_hangs_does_not_hold_up_the_others() -> None:
    async def main() -> None:
        store = Renewals()
        store.held = asyncio.Event()
        keeper = AsyncKeeper(store)
        keeper.keep(lease(), lease_ms=LEASE_MS)
        await asyncio.sleep(11)
        store.held = None
        keeper.keep(lease(1), lease_ms=LEASE_MS)
        await asyncio.sleep(15)
        assert store.times(1) == [21.0]

    run(main())


def test_two_loops_one_after_the_other() -> None:
    store = Renewals()
    keeper = AsyncKeeper(store)

    async def main() -> None:
        keeper.keep(lease(), lease_ms=LEASE_MS)
        await asyncio.sleep(11)

    run(main())
    run(main())
    assert store.times() == [10.0, 10.0]


def test_two_loops_at_once_keep_their_own() -> None:
    store = Renewals()
    keeper = AsyncKeeper(store)
    together = threading.Barrier(2)
    failures: list[BaseException] = []

    async def main(number: int) -> None:
        kept = keeper.keep(lease(number), lease_ms=45)
        await asyncio.to_thread(together.wait)
        async with asyncio.timeout(30):
            while len(store.times(number)) < 3:
                await asyncio.sleep(0.005)
        keeper.stop(kept)

    def thread_of(number: int) -> Callable[[], None]:
        def work() -> None:
            try:
                asyncio.run(main(number))
            except BaseException as error:
                failures.append(error)

        return work

    threads = [threading.Thread(target=thread_of(number)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_stopping_when_the_loop_is_gone() -> None:
    keeper = AsyncKeeper(Renewals())

    async def main() -> None:
        kept.append(keeper.keep(lease(), lease_ms=LEASE_MS))

    kept: list[Any] = []
    run(main())
    keeper.stop(kept[0])
    assert kept[0].stopped


def test_a_renewal_is_never_later_than_its_third() -> None:
    async def main() -> None:
        store = Renewals()
        keeper = AsyncKeeper(store)
        for number in range(50):
            keeper.keep(lease(number), lease_ms=997 + 31 * number)
        await asyncio.sleep(0.997 + 31 * 0.05)
        for number in range(50):
            third_s = (997 + 31 * number) / 3_000
            at_s = next(at_s - 1_000 for name, at_s in store.asked if name == f"key {number}")
            assert third_s - QUANTUM_S <= at_s <= third_s + 0.001

    run(main())


def test_a_moment_that_is_now_on_uvloop() -> None:
    """Where asyncio has a timer, uvloop has a handle without a time: the next lease must not ask it."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        store = Renewals()
        keeper = AsyncKeeper(store)
        kept = [keeper.keep(lease(number), lease_ms=1) for number in range(3)]
        async with asyncio.timeout(30):
            while {name for name, _ in store.asked} != {"key 0", "key 1", "key 2"}:
                await asyncio.sleep(0.001)
        for each in kept:
            keeper.stop(each)

    uvloop.run(main())
