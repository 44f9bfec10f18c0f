"""Whatever waits while the previous batch is in flight goes out as one, and callers stay independent."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from semel.errors import StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.runtime.deadline import SHARED_DUE_S, shared_deadline
from semel.stores.batching import AWAY_AFTER, BATCH_MAX, Batcher

Told = list[tuple[str, object]]


class Wire:
    """Answers `name` with `NAME`, when it is let; remembers what was sent."""

    def __init__(self, *, held: bool = False, failing: Sequence[str] = (), away: bool = False) -> None:
        self.sent: list[list[str]] = []
        self.free = asyncio.Event()
        self.failing = set(failing)
        self.away = away
        if not held:
            self.free.set()

    async def send(self, calls: Sequence[str]) -> Sequence[str]:
        self.sent.append(list(calls))
        await self.free.wait()
        if self.away:
            raise StoreUnavailable("no answer")
        for call in calls:
            if call in self.failing:
                raise StoreMisconfigured(f"{call} is bad")
        return [call.upper() for call in calls]


async def turn(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def start(batcher: Batcher[str, str], *names: str) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(batcher.call(name)) for name in names]


async def outcome(tasks: Sequence[asyncio.Task[str]]) -> list[str | BaseException]:
    async with asyncio.timeout(5):
        return await asyncio.gather(*tasks, return_exceptions=True)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


class TestBatching:
    def test_a_lone_caller_goes_at_once(self) -> None:
        async def main() -> None:
            wire = Wire()
            batcher = Batcher(wire.send)
            assert await batcher.call("a") == "A"
            assert await batcher.call("b") == "B"
            assert wire.sent == [["a"], ["b"]]

        run(main())

    def test_many_who_come_at_once_go_out_as_one(self) -> None:
        async def main() -> None:
            wire = Wire()
            names = [f"n{number}" for number in range(100)]
            assert await outcome(start(Batcher(wire.send), *names)) == [name.upper() for name in names]
            assert wire.sent == [names]

        run(main())

    def test_what_waits_goes_out_as_one_in_order(self) -> None:
        async def main() -> None:
            wire = Wire(held=True)
            batcher = Batcher(wire.send)
            first = start(batcher, "a")
            await turn()
            rest = start(batcher, "b", "c", "d")
            await turn()
            assert wire.sent == [["a"]], "one batch in flight"
            wire.free.set()
            assert await outcome(first + rest) == ["A", "B", "C", "D"]
            assert wire.sent == [["a"], ["b", "c", "d"]]

        run(main())

    def test_a_batch_has_a_largest_size(self) -> None:
        async def main() -> None:
            wire = Wire(held=True)
            batcher = Batcher(wire.send, batch_max=2)
            first = start(batcher, "a")
            await turn()
            rest = start(batcher, *"bcdef")
            await turn()
            wire.free.set()
            await outcome(first + rest)
            assert [len(batch) for batch in wire.sent] == [1, 2, 2, 1]

        run(main())
        assert BATCH_MAX == 256

    def test_each_caller_gets_its_own_reply_under_load(self) -> None:
        async def main() -> None:
            wire = Wire()
            batcher = Batcher(wire.send)
            names = [f"n{number}" for number in range(1_000)]
            assert await outcome(start(batcher, *names)) == [name.upper() for name in names]
            assert len(wire.sent) < 10

        run(main())

    def test_draining_waits_for_everything_that_was_asked_for(self) -> None:
        async def main() -> None:
            wire = Wire(held=True)
            batcher = Batcher(wire.send)
            await batcher.drain()
            tasks = start(batcher, "a")
            await turn()
            tasks += start(batcher, "b")
            draining = asyncio.create_task(batcher.drain())
            await turn()
            assert not draining.done()
            wire.free.set()
            await asyncio.wait_for(draining, 30)
            assert wire.sent == [["a"], ["b"]]
            assert await outcome(tasks) == ["A", "B"]

        run(main())


class TestFailures:
    def test_of_a_lone_call(self) -> None:
        async def main() -> None:
            wire = Wire(failing=["a"])
            with pytest.raises(StoreMisconfigured, match="a is bad"):
                await Batcher(wire.send).call("a")
            assert wire.sent == [["a"]]

        run(main())

    def test_one_member_never_fails_its_neighbours(self) -> None:
        async def main() -> None:
            wire = Wire(failing=["b"])
            a, b, c = await outcome(start(Batcher(wire.send), "a", "b", "c"))
            assert (a, c) == ("A", "C")
            assert isinstance(b, StoreMisconfigured)
            assert wire.sent == [["a", "b", "c"], ["a"], ["b"], ["c"]]

        run(main())

    def test_not_even_one_that_breaks_the_connection(self) -> None:
        async def main() -> None:
            sent: list[list[str]] = []

            async def send(calls: Sequence[str]) -> Sequence[str]:
                sent.append(list(calls))
                if "poison" in calls:
                    raise StoreUnavailable("connection reset")
                return [call.upper() for call in calls]

            poison, b, c = await outcome(start(Batcher(send), "poison", "b", "c"))
            assert isinstance(poison, StoreUnavailable)
            assert (b, c) == ("B", "C")

        run(main())

    def test_a_store_that_is_away_is_not_asked_for_every_caller(self) -> None:
        async def main() -> None:
            wire = Wire(away=True)
            failures = await outcome(start(Batcher(wire.send), *(f"n{number}" for number in range(100))))
            assert all(isinstance(failure, StoreUnavailable) for failure in failures)
            assert len({id(failure) for failure in failures}) == 100, (
                "nobody shares an exception, which has a traceback"
            )
            assert len(wire.sent) == 1 + AWAY_AFTER

        run(main())

    def test_the_next_call_after_a_failure_is_tried_again(self) -> None:
        async def main() -> None:
            wire = Wire(away=True)
            batcher = Batcher(wire.send)
            await outcome(start(batcher, "a", "b"))
            wire.away = False
            assert await batcher.call("c") == "C"

        run(main())

    @pytest.mark.parametrize("replies", [[], ["A"], ["A", "B", "C"]])
    def test_a_store_that_answers_the_wrong_number_leaves_nobody_waiting(self, replies: list[str]) -> None:
        async def main() -> None:
            async def send(calls: Sequence[str]) -> Sequence[str]:
                return replies

            failures = await outcome(start(Batcher(send), "a", "b"))
            assert all(isinstance(failure, (StoreUnavailable, str)) for failure in failures)
            assert any(isinstance(failure, StoreUnavailable) for failure in failures) or len(replies) == 1

        run(main())


class TestDeadline:
    """However a call goes out, its caller is answered near the time-out. What is under way goes on."""

    T_S = 0.04

    def test_of_calls_in_flight_and_of_those_that_wait_for_them(self) -> None:
        async def main() -> None:
            wire = Wire(held=True)
            batcher = Batcher(wire.send, timeout_s=self.T_S, late="nothing within 40 ms")
            loop = asyncio.get_running_loop()
            started = loop.time()
            first = start(batcher, "a", "b")
            await turn()
            failures = await outcome(first + start(batcher, "c"))
            assert self.T_S <= loop.time() - started < 1
            assert [(type(failure), str(failure)) for failure in failures] == [
                (StoreTimeout, "nothing within 40 ms")
            ] * 3
            assert len({id(failure) for failure in failures}) == 3
            assert wire.sent == [["a", "b"]]
            wire.free.set()
            assert await batcher.call("d") == "D"
            assert wire.sent == [["a", "b"], ["d"]], "who was told is not asked for any more"

        run(main())

    def test_of_a_failed_batch_that_is_repeated_one_by_one(self) -> None:
        async def main() -> None:
            sent: list[int] = []

            async def send(calls: Sequence[str]) -> Sequence[str]:
                sent.append(len(calls))
                if len(calls) > 1:
                    raise StoreUnavailable("connection reset")
                await asyncio.sleep(0.03)
                return [call.upper() for call in calls]

            batcher = Batcher(send, timeout_s=self.T_S)
            replies = await outcome(start(batcher, *"abcdef"))
            assert replies[0] == "A"
            assert all(isinstance(reply, StoreTimeout) for reply in replies[2:])
            await batcher.drain()
            assert len(sent) <= 3, "who was told is not asked for any more"

        run(main())

    def test_a_batch_that_took_all_the_time_is_not_repeated(self) -> None:
        async def main() -> None:
            sent: list[int] = []

            async def send(calls: Sequence[str]) -> Sequence[str]:
                sent.append(len(calls))
                raise StoreTimeout("all 10 connections are busy")

            failures = await outcome(start(Batcher(send, timeout_s=5), "a", "b", "c"))
            assert [str(failure) for failure in failures] == ["all 10 connections are busy"] * 3
            assert len({id(failure) for failure in failures}) == 3
            assert sent == [3]

        run(main())

    def test_each_call_has_its_own(self) -> None:
        async def main() -> None:
            wire = Wire(held=True)
            batcher = Batcher(wire.send, timeout_s=self.T_S)
            loop = asyncio.get_running_loop()
            (first,) = start(batcher, "a")
            await asyncio.sleep(self.T_S / 2)
            (second,) = start(batcher, "b")
            (failure,) = await outcome([first])
            assert isinstance(failure, StoreTimeout)
            assert not second.done()
            wire.free.set()
            assert await outcome([second]) == ["B"]
            await asyncio.sleep(2 * self.T_S)
            assert batcher._timer is None, f"nobody waits at {loop.time()}"

        run(main())

    def test_a_call_that_goes_on_with_another_one_shares_its_deadline(self) -> None:
        """It is answered before those who came earlier, and its failure says when its time ended."""

        async def main() -> None:
            wire = Wire(held=True)
            batcher = Batcher(wire.send, timeout_s=5)
            loop = asyncio.get_running_loop()
            first = start(batcher, "a")
            await turn()
            due_s = loop.time() + self.T_S
            with shared_deadline(due_s):
                again = start(batcher, "b")
            (failure,) = await outcome(again)
            assert isinstance(failure, StoreTimeout)
            assert (failure.due_ms, loop.time() - due_s < 2) == (round(due_s * 1000), True)
            assert not first[0].done()
            wire.free.set()
            assert await outcome(first) == ["A"]

        run(main())

    def test_what_carries_a_call_out_works_for_others_too(self) -> None:
        async def main() -> None:
            shared: list[float | None] = []

            async def send(calls: Sequence[str]) -> Sequence[str]:
                shared.append(SHARED_DUE_S.get())
                return [call.upper() for call in calls]

            with shared_deadline(asyncio.get_running_loop().time() + 5):
                assert await Batcher(send, timeout_s=5).call("a") == "A"
            assert shared == [None]

        run(main())

    def test_a_failure_says_how_much_time_was_left(self) -> None:
        async def main() -> None:
            wire = Wire(away=True)
            now_ms = asyncio.get_running_loop().time() * 1000
            (failure,) = await outcome(start(Batcher(wire.send, timeout_s=5), "a"))
            assert isinstance(failure, StoreUnavailable)
            assert failure.due_ms is not None
            assert 4_999 <= failure.due_ms - now_ms < 6_000

        run(main())

    def test_what_is_in_flight_is_waited_for_by_those_who_want_certainty(self) -> None:
        async def main() -> None:
            wire = Wire(held=True)
            batcher = Batcher(wire.send, timeout_s=self.T_S)
            await batcher.landed()
            assert isinstance((await outcome(start(batcher, "a")))[0], StoreTimeout)
            landing = [asyncio.create_task(batcher.landed()) for _ in range(2)]
            await turn()
            landing.pop().cancel()
            assert not landing[0].done(), "its caller is answered, and it is still under way"
            wire.free.set()
            await asyncio.wait_for(landing[0], 30)

        run(main())


class TestCancellation:
    def told(self) -> tuple[Told, Any]:
        orphans: Told = []
        return orphans, lambda call, reply: orphans.append((call, reply))

    def test_of_a_queued_caller_sends_nothing(self) -> None:
        async def main() -> None:
            wire = Wire(held=True)
            orphans, orphaned = self.told()
            batcher = Batcher(wire.send, orphaned=orphaned)
            (a,) = start(batcher, "a")
            await turn()
            b, c = start(batcher, "b", "c")
            await turn()
            b.cancel()
            wire.free.set()
            assert isinstance((await outcome([b]))[0], asyncio.CancelledError)
            assert await outcome([a, c]) == ["A", "C"]
            assert wire.sent == [["a"], ["c"]]
            assert orphans == [], "what was never sent needs nothing given back"

        run(main())

    def test_of_a_caller_in_flight_takes_nobody_with_it(self) -> None:
        async def main() -> None:
            wire = Wire(held=True)
            orphans, orphaned = self.told()
            tasks = start(Batcher(wire.send, orphaned=orphaned), "a", "b", "c")
            await turn()
            tasks[1].cancel()
            await turn()
            assert orphans == [], "its fate is not known yet"
            wire.free.set()
            assert await outcome([tasks[0], tasks[2]]) == ["A", "C"]
            assert orphans == [("b", "B")]

        run(main())

    def test_at_the_very_moment_of_the_reply(self) -> None:
        """The reply is there, the caller has not run yet, and the cancellation comes first."""

        async def main() -> None:
            wire = Wire(held=True)
            orphans, orphaned = self.told()
            batcher = Batcher(wire.send, orphaned=orphaned)
            (task,) = start(batcher, "a")
            await turn()
            wire.free.set()
            while batcher._sender is not None and not batcher._sender.done():
                await asyncio.sleep(0)
                if task.done():
                    break
                waiter = task._fut_waiter  # type: ignore[attr-defined]
                if waiter is not None and waiter.done():
                    task.cancel()
                    break
            with pytest.raises(asyncio.CancelledError):
                await task
            assert orphans == [("a", "A")], "granted to nobody, so it must be given back"

        run(main())

    def test_in_a_batch_that_failed_is_told_the_failure_and_not_sent_again(self) -> None:
        async def main() -> None:
            wire = Wire(held=True, away=True)
            orphans, orphaned = self.told()
            tasks = start(Batcher(wire.send, orphaned=orphaned), "a", "b")
            await turn()
            tasks[0].cancel()
            wire.free.set()
            await outcome(tasks)
            ((call, reply),) = orphans
            assert call == "a"
            assert isinstance(reply, StoreUnavailable), "it may have happened"
            assert wire.sent == [["a", "b"], ["b"]]

        run(main())

    def test_without_a_listener(self) -> None:
        async def main() -> None:
            wire = Wire(held=True)
            a, b = start(Batcher(wire.send), "a", "b")
            await turn()
            a.cancel()
            wire.free.set()
            assert await outcome([b]) == ["B"]

        run(main())


class TestShutdown:
    """The event loop is stopped around the batcher: whatever is awaited ends."""

    def left_by(self, wire: Wire, *, turns: int) -> list[asyncio.Future[str]]:
        left: list[asyncio.Future[str]] = []

        async def main() -> None:
            batcher = Batcher(wire.send)
            first = start(batcher, "a", "b")
            await turn(turns)
            rest = start(batcher, "c")
            await turn(1)
            if batcher._sender is not None:
                batcher._sender.cancel()
            async with asyncio.timeout(5):
                await asyncio.wait(first + rest)
            left.extend(first + rest)

        asyncio.run(main())
        return left

    def test_while_a_batch_is_in_flight(self) -> None:
        assert all(task.cancelled() for task in self.left_by(Wire(held=True), turns=5))

    def test_while_a_failed_batch_is_repeated_one_by_one(self) -> None:
        async def main() -> None:
            sent: list[int] = []

            async def send(calls: Sequence[str]) -> Sequence[str]:
                sent.append(len(calls))
                if len(calls) > 1:
                    raise StoreMisconfigured("find out whose fault it is")
                await asyncio.sleep(3600)
                return calls

            batcher = Batcher(send)
            tasks = start(batcher, "a", "b")
            await turn()
            assert sent == [2, 1]
            assert batcher._sender is not None
            batcher._sender.cancel()
            assert all(isinstance(each, asyncio.CancelledError) for each in await outcome(tasks))

        run(main())

    def test_before_the_first_batch_was_sent(self) -> None:
        async def main() -> None:
            wire = Wire()
            batcher = Batcher(wire.send)
            call = batcher.call("a")
            call.send(None)  # asked for, and the sender is not begun
            assert batcher._sender is not None
            batcher._sender.cancel()
            await turn(1)
            call.close()
            assert await asyncio.wait_for(batcher.call("b"), 30) == "B", (
                "a later caller, such as a cleanup, is not stuck"
            )
            await asyncio.wait_for(batcher.drain(), 30)

        run(main())

    def test_a_loop_that_ends_leaves_no_task_hanging(self) -> None:
        ended: list[str] = []

        async def main() -> None:
            batcher = Batcher(Wire(held=True).send)

            async def caller(name: str) -> None:
                try:
                    await batcher.call(name)
                finally:
                    ended.append(name)

            tasks = [asyncio.create_task(caller(name)) for name in "abc"]
            await turn()
            assert len(tasks) == 3

        asyncio.run(main())
        assert sorted(ended) == ["a", "b", "c"]
