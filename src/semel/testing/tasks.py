"""What only tasks can do: be cancelled, share a batch, and live in one event loop after another."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from semel.core.records import Acquired, Claimed, Key, Lease, Result
from semel.store import AsyncMigratable, AsyncStore, Clock
from semel.testing.calls import granted
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.processes import forked
from semel.testing.races import the_winner
from semel.testing.samples import ANSWER, LEASE_MS, RETENTION_MS, SAME

PATIENCE_S = 10
MANY = 50


def claiming(store: AsyncStore, key: Key, owner: str) -> Coroutine[Any, Any, Claimed]:
    return store.claim(key, SAME, owner=owner, lease_ms=LEASE_MS, retention_ms=RETENTION_MS, takeover=False)


class TaskCalls(Handles):
    @abstractmethod
    def open(self, clock: Clock | None) -> AsyncStore: ...

    @pytest.fixture
    def run(self, clock: ManualClock) -> Callable[[Callable[[AsyncStore], Awaitable[None]]], None]:
        """Runs a test in an event loop, with a handle that was opened for it."""

        async def main(test: Callable[[AsyncStore], Awaitable[None]]) -> None:
            store = self.open(clock)
            if isinstance(store, AsyncMigratable):
                await store.migrate()
            await test(store)
            await store.close()

        return lambda test: asyncio.run(main(test))

    def test_of_many_tasks_one_wins(self, run: Run, key: Key) -> None:
        async def test(store: AsyncStore) -> None:
            for number in range(self.race_rounds):
                each = replace(key, name=f"{number}")
                winner = the_winner(await asyncio.gather(*(claiming(store, each, f"{n}") for n in range(MANY))), 1)
                record = await store.get(each)
                assert record is not None
                assert record.lease == winner

        run(test)

    def test_each_of_many_tasks_gets_its_own_reply(self, run: Run, key: Key) -> None:
        """Calls that share a round trip, with the same key or with another one, are answered one by one."""

        async def test(store: AsyncStore) -> None:
            keys = [replace(key, name=f"{number % 10}") for number in range(MANY)]
            claims = await asyncio.gather(*(claiming(store, each, f"{n}") for n, each in enumerate(keys)))
            leases = {reply.lease.key: reply.lease for reply in claims if isinstance(reply, Acquired)}
            assert len(leases) == 10
            for number, reply in enumerate(claims):
                lease = reply.lease if isinstance(reply, Acquired) else reply.record.lease
                assert lease == leases[keys[number]]
            ends = [
                store.complete(replace(lease, owner=owner), Result("by", owner.encode()), retention_ms=RETENTION_MS)
                for lease in leases.values()
                for owner in ("stranger", lease.owner, "stranger", lease.owner)
            ]
            assert await asyncio.gather(*ends) == [False, True, False, True] * 10
            records = await asyncio.gather(*(store.get(each) for each in keys))
            assert [record and record.key for record in records] == keys
            assert all(record.result == Result("by", record.owner.encode()) for record in records if record)

        run(test)

    def test_many_tasks_find_nothing_past_retention(self, run: Run, clock: ManualClock, key: Key) -> None:
        """Calls that share a round trip, on live records or on expired ones: each reply is what it would be alone."""

        async def test(store: AsyncStore) -> None:
            old, new = ([replace(key, name=f"{age}-{number}") for number in range(MANY)] for age in ("old", "new"))
            for group in (old, new):
                clock.advance(RETENTION_MS // 2)
                leases = [granted(each) for each in await asyncio.gather(*(claiming(store, key, "a") for key in group))]
                await asyncio.gather(*(store.complete(lease, ANSWER, retention_ms=RETENTION_MS) for lease in leases))
            clock.advance(RETENTION_MS // 2)
            mixed = [each for pair in zip(old, new, strict=True) for each in pair]
            found = await asyncio.gather(*(store.get(each) for each in mixed))
            assert [record and record.key for record in found] == [None if each in old else each for each in mixed]
            again = await asyncio.gather(*(claiming(store, each, "b") for each in mixed))
            assert [isinstance(reply, Acquired) for reply in again] == [each in old for each in mixed]

        run(test)

    def test_a_claim_whose_caller_was_cancelled_is_given_back(self, run: Run, key: Key) -> None:
        async def test(store: AsyncStore) -> None:
            for number in range(self.race_rounds):
                each = replace(key, name=f"{number}")
                task = asyncio.create_task(claiming(store, each, "cancelled"))
                await pass_time(number)
                task.cancel()
                (reply,) = await asyncio.gather(task, return_exceptions=True)
                if isinstance(reply, Acquired):  # it was faster, and knows that the key is its own
                    assert await store.release(reply.lease)
                await until_free(store, each)

        run(test)

    def test_a_cancelled_caller_takes_no_other_one_s_call_with_it(self, run: Run, key: Key) -> None:
        async def test(store: AsyncStore) -> None:
            for number in range(self.race_rounds):
                keys = [Key(key.tenant, f"{number}", f"{each}") for each in range(10)]
                tasks = [asyncio.create_task(claiming(store, each, "a")) for each in keys]
                await pass_time(number)
                for task in tasks[::2]:
                    task.cancel()
                replies = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(reply, Acquired) for reply in replies[1::2]), replies
                records = await asyncio.gather(*(store.get(each) for each in keys[1::2]))
                assert [record and record.owner for record in records] == ["a"] * 5

        run(test)

    def test_a_store_lives_in_one_event_loop_after_another(self, clock: ManualClock, key: Key) -> None:
        store = self.open(clock)

        async def first() -> Lease:
            if isinstance(store, AsyncMigratable):
                await store.migrate()
            return granted(await claiming(store, key, "a"))

        async def second() -> bool:
            done = await store.complete(lease, ANSWER, retention_ms=RETENTION_MS)
            await store.close()
            return done

        lease = asyncio.run(first())
        assert asyncio.run(second()) is True

    def test_a_handle_that_was_used_before_a_fork_works_on_both_sides(self, clock: ManualClock, key: Key) -> None:
        if not self.shared:
            pytest.skip("the store lives in one object")
        store = self.open(clock)

        async def work(owner: str) -> bool:
            if isinstance(store, AsyncMigratable):
                await store.migrate()
            lease = granted(await claiming(store, replace(key, name=owner), owner))
            done = await store.complete(lease, ANSWER, retention_ms=RETENTION_MS)
            await store.close()
            return done

        assert asyncio.run(work("parent"))
        assert forked(lambda: asyncio.run(work("child")))
        assert asyncio.run(work("parent again"))


Run = Callable[[Callable[[AsyncStore], Awaitable[None]]], None]


async def pass_time(number: int) -> None:
    """A little later each time, to meet a call before it is sent, on its way, and answered."""
    if number % 2:
        await asyncio.sleep(number * 0.0001)
    else:
        for _ in range(number // 2):
            await asyncio.sleep(0)


async def until_free(store: AsyncStore, key: Key) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not isinstance(await claiming(store, key, "next"), Acquired):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
