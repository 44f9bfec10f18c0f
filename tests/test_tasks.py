"""Tasks that begin at once, where Python can do that."""

import asyncio
import gc
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import semel.runtime.tasks
from semel.core.effects import Effect
from semel.runtime.tasks import Tasks

AT_ONCE = sys.version_info >= (3, 12)


@pytest.mark.parametrize("waits", [False, True])
def test_work_begins_at_once_and_whoever_waits_is_kept_until_it_ends(waits: bool) -> None:
    told: list[str] = []

    async def work() -> None:
        told.append("begun")
        if waits:
            await asyncio.sleep(0)
        told.append("ended")

    async def main() -> None:
        tasks = Tasks()

        def ended(task: asyncio.Task[Any]) -> None:
            told.append("told")
            tasks.forget(task)

        task = tasks.spawn(work(), ended=ended, at_once=True)
        assert told == ([] if not AT_ONCE else ["begun"] if waits else ["begun", "ended", "told"])
        assert (task in tasks._running) is not task.done()
        await tasks.drain()
        await asyncio.sleep(0)
        assert told == ["begun", "ended", "told"]
        assert not tasks._running

    asyncio.run(main())


class TestStopping:
    """Work that has begun is waited for. A claim of which nothing ran is not worth the same time."""

    def drained(
        self, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Tasks, asyncio.Event], object], *, frees: bool
    ) -> float:
        monkeypatch.setattr(semel.runtime.tasks, "DRAIN_S", 0.3)
        monkeypatch.setattr(semel.runtime.tasks, "ABANDON_S", 0.03)

        async def main() -> float:
            tasks, free = Tasks(), asyncio.Event()
            begin(tasks, free)
            await asyncio.sleep(0)
            if frees:
                asyncio.get_running_loop().call_later(0.01, free.set)
            started = time.monotonic()
            await tasks.drain()
            return time.monotonic() - started

        return asyncio.run(main())

    def test_with_claims_that_cannot_be_given_back(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        took_s = self.drained(
            monkeypatch, lambda tasks, free: [tasks.abandon(free.wait) for _ in range(40)], frees=False
        )
        assert took_s < 0.3
        (record,) = caplog.records
        assert (record.levelname, "40 claims could not be given back" in record.message) == ("WARNING", True)
        assert "outcome is unknown" not in record.message

    def test_with_claims_that_can(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        assert self.drained(monkeypatch, lambda tasks, free: tasks.abandon(free.wait), frees=True) >= 0.009
        assert not caplog.records

    def test_with_work_that_does_not_end(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert self.drained(monkeypatch, lambda tasks, free: tasks.spawn(free.wait()), frees=False) >= 0.3
        (record,) = caplog.records
        assert (record.levelname, "1 operations were cut off" in record.message) == ("ERROR", True)

    def test_more_claims_than_the_bound_are_left_to_lapse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(semel.runtime.tasks, "ABANDONING_MAX", 2)

        async def main() -> None:
            tasks, free = Tasks(), asyncio.Event()
            assert [tasks.abandon(free.wait) for _ in range(3)] == [True, True, False]
            free.set()
            await tasks.drain()
            assert tasks.abandon(free.wait)
            await tasks.drain()

        asyncio.run(main())


def test_an_applications_own_task_factory_makes_every_task() -> None:
    made: list[object] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(work)
        return asyncio.Task(work, loop=loop, **options)

    async def work() -> None:
        pass

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        begun = work()
        await Tasks().spawn(begun, at_once=True)
        assert made == [begun]

    asyncio.run(main())


def test_an_effect_that_holds_what_a_user_gave_can_be_collected() -> None:
    class Holding(Effect[None], frozen=True):
        given: list[Any]

    class Marker:
        pass

    marker, given = Marker(), list[Any]()
    given += [Holding(given), marker]
    gone = weakref.ref(marker)
    del marker, given
    gc.collect()
    assert gone() is None
