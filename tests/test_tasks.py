"""Tasks that begin at once, where Python can do that."""

import asyncio
import gc
import sys
import weakref
from typing import Any

import pytest

from semel.core.effects import Effect
from semel.tasks import Tasks

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
