"""Virtual time, and processes that are paused and killed in it."""

from __future__ import annotations

import asyncio
import time

import pytest

from simulation.loop import Hang, Scheduler, VirtualLoop


def test_an_hour_passes_in_no_time() -> None:
    world = Scheduler(1, 0.0)
    loop = VirtualLoop(world)

    async def sleep() -> float:
        await asyncio.sleep(3600)
        return loop.time()

    started = time.monotonic()
    task = loop.create_task(sleep())
    world.run()
    assert 3600 <= task.result() < 3601
    assert time.monotonic() - started < 60


def test_a_killed_process_runs_no_finally() -> None:
    world = Scheduler(1, 0.0)
    loop = VirtualLoop(world)
    said = []

    async def work() -> None:
        try:
            said.append("began")
            await asyncio.sleep(1)
            said.append("ended")
        finally:
            said.append("finally")

    task = loop.create_task(work())
    world.after_ms(500, setattr, loop, "dead", True)
    world.run()
    assert said == ["began"]
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_paused_process_goes_on_where_it_was() -> None:
    world = Scheduler(1, 0.0)
    loop = VirtualLoop(world)

    async def work() -> float:
        await asyncio.sleep(1)
        return world.now_s

    task = loop.create_task(work())
    world.after_ms(500, loop.pause, 2_000)
    world.run()
    assert task.result() == pytest.approx(2.5)


def test_a_clock_that_jumps_ahead_makes_timers_due() -> None:
    world = Scheduler(1, 0.0)
    loop = VirtualLoop(world)

    async def work() -> tuple[float, float]:
        await asyncio.sleep(10)
        return world.now_s, loop.time()

    task = loop.create_task(work())
    world.after_ms(1_000, loop.jump, 4_000)
    world.run()
    assert task.result() == (pytest.approx(6), pytest.approx(10))


def test_callbacks_of_one_process_run_in_order() -> None:
    world = Scheduler(1, 0.001)
    loops = [VirtualLoop(world) for _ in range(3)]
    seen: list[tuple[int, int]] = []
    for number in range(50):
        for index, loop in enumerate(loops):
            loop.call_soon(seen.append, (index, number))
    world.run()
    for index in range(3):
        assert [number for which, number in seen if which == index] == list(range(50))
    assert [index for index, _ in seen] != [index for _ in range(50) for index in range(3)], "between them, by the seed"


def test_the_watchdog_ends_what_goes_on_for_ever() -> None:
    world = Scheduler(1, 0.0)
    loop = VirtualLoop(world)

    def again() -> None:
        loop.call_soon(again)

    loop.call_soon(again)
    with pytest.raises(Hang):
        world.run()
