"""The async face of a store that is asked in batches: what a cancelled caller was granted goes back, by owner."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from semel.core.effects import Claim, Complete, Effect, Release
from semel.core.records import Acquired, Key, Lease, Occupied, Result
from semel.errors import StoreUnavailable
from semel.stores.batch_face import CoalescedFace
from semel.stores.memory import AsyncMemoryStore

KEY = Key("tenant", "scope", "name")


class Coalesced(CoalescedFace):
    """The memory store behind a wire that can be held, cut before the call arrives, or cut before its reply does."""

    def __init__(self) -> None:
        super().__init__()
        self.store = AsyncMemoryStore(clock=lambda: 0)
        self.sent: list[Sequence[Effect[Any]]] = []
        self.held: asyncio.Event | None = None
        self.lose_replies = 0

    async def _send(self, calls: Sequence[Effect[Any]]) -> Sequence[object]:
        self.sent.append(calls)
        replies = [await self.store._call(call) for call in calls]
        if self.held is not None:
            await self.held.wait()
        if self.lose_replies:
            self.lose_replies -= 1
            raise StoreUnavailable("the reply was lost")
        return replies

    async def purge(self, *, limit: int) -> int:
        return await self.store.purge(limit=limit)

    async def close(self) -> None:
        await self._drain()


def claim_by(store: CoalescedFace, owner: str, key: Key = KEY) -> Coroutine[Any, Any, Acquired | Occupied]:
    return store.claim(key, "1.f", owner=owner, lease_ms=30_000, retention_ms=60_000, takeover=False)


async def turn(times: int = 10) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def test_fifty_claims_of_one_key_have_one_winner() -> None:
    async def main() -> None:
        store = Coalesced()
        replies = await asyncio.gather(*(claim_by(store, f"owner {number}") for number in range(50)))
        assert len(store.sent) == 1
        (won,) = [reply for reply in replies if isinstance(reply, Acquired)]
        assert {reply.record.owner for reply in replies if isinstance(reply, Occupied)} == {won.lease.owner}

    asyncio.run(main())


def test_calls_of_one_kind_share_a_lane() -> None:
    async def main() -> None:
        store = Coalesced()
        claimed = await claim_by(store, "a")
        assert isinstance(claimed, Acquired)
        await asyncio.gather(
            store.complete(claimed.lease, Result("text", b"x"), retention_ms=5),
            store.complete(claimed.lease, Result("text", b"y"), retention_ms=5),
            store.release(claimed.lease),
        )
        kinds = [[type(call) for call in calls] for calls in store.sent]
        assert kinds[0] == [Claim]
        assert [Complete, Complete] in kinds
        assert [Release] in kinds
        async with store:
            pass

    asyncio.run(main())


class TestCancelledClaim:
    async def cancelled(self, store: Coalesced) -> None:
        """Claim as `gone`, and be cancelled while the reply is on its way."""
        store.held = asyncio.Event()
        task = asyncio.create_task(claim_by(store, "gone"))
        await turn()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await store.store.get(KEY) is not None, "the store granted it"
        store.held.set()
        store.held = None

    def test_goes_back(self) -> None:
        async def main() -> None:
            store = Coalesced()
            await self.cancelled(store)
            await turn(20)
            assert await store.store.get(KEY) is None
            assert isinstance(await claim_by(store, "next"), Acquired), "nothing ran, so the next one may"

        asyncio.run(main())

    def test_goes_back_before_the_store_is_closed(self) -> None:
        async def main() -> None:
            store = Coalesced()
            await self.cancelled(store)
            await asyncio.wait_for(store.close(), 30)
            assert await store.store.get(KEY) is None

        asyncio.run(main())

    def test_goes_back_when_its_reply_is_lost_too(self) -> None:
        async def main() -> None:
            store = Coalesced()
            store.lose_replies = 1
            await self.cancelled(store)
            await asyncio.wait_for(store.close(), 30)
            assert await store.store.get(KEY) is None

        asyncio.run(main())

    def test_goes_back_once_the_store_answers_again(self) -> None:
        async def main() -> None:
            store = Coalesced()
            store.lose_replies = 2  # of the claim, and of the first release
            await self.cancelled(store)
            await asyncio.wait_for(store.close(), 30)
            releases = [call for calls in store.sent for call in calls if isinstance(call, Release)]
            assert [each.lease.owner for each in releases] == ["gone", "gone"]
            assert await store.store.get(KEY) is None

        asyncio.run(main())

    def test_that_was_not_granted_takes_nothing_from_the_winner(self) -> None:
        async def main() -> None:
            store = Coalesced()
            await claim_by(store, "winner")
            await self.cancelled(store)
            await store.close()
            record = await store.store.get(KEY)
            assert record is not None
            assert record.owner == "winner"
            assert not any(isinstance(call, Release) for calls in store.sent for call in calls)

        asyncio.run(main())


def test_another_call_that_is_cancelled_is_not_undone() -> None:
    async def main() -> None:
        store = Coalesced()
        await claim_by(store, "a")
        store.held = asyncio.Event()
        task = asyncio.create_task(store.complete(Lease(KEY, "a", 1, 0), Result("text", b"x"), retention_ms=60_000))
        await turn()
        task.cancel()
        store.held.set()
        await store.close()
        record = await store.store.get(KEY)
        assert record is not None
        assert record.result == Result("text", b"x")

    asyncio.run(main())


def test_a_loop_that_was_abandoned_does_not_keep_the_next_one_from_closing() -> None:
    store = Coalesced()

    async def cancelled_claim() -> None:
        store.lose_replies = 10**6  # the release is tried again and again
        task = asyncio.create_task(claim_by(store, "gone"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await turn(20)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(cancelled_claim())
    left = asyncio.all_tasks(loop)
    assert left, "it was still at it"
    store.lose_replies = 0
    asyncio.run(asyncio.wait_for(store.close(), 30))
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.wait(left))
    loop.close()


def test_two_loops_one_after_the_other() -> None:
    store = Coalesced()

    async def main(owner: str, key: Key) -> None:
        assert isinstance(await claim_by(store, owner, key), Acquired)

    asyncio.run(main("a", KEY))
    asyncio.run(main("b", Key("tenant", "scope", "another")))
