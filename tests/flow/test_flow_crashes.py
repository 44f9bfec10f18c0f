"""A crash after every single thing that a flow does, on the way forward and back. The world counts effects."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import semel
from flow.conftest import KINDS
from flow.trips import PATIENCE_S, Boundaries, Clock, Declined, Killed, Trip, World, start
from semel.flow import AsyncFlow, Flow, NotDone

FORWARD = ["do/hold", "do/order", "do/mail"]
BACK = ["undo/charge", "undo/mail", "undo/order", "undo/hold"]


def expected(world: World, *, declined: bool) -> list[str]:
    places = [*FORWARD, *BACK] if declined else [*FORWARD, "do/charge"]
    return places if world.has_database else [place for place in places if "order" not in place]


def told(world: World, key: str, error: semel.OutcomeUnknown) -> tuple[str, bool, Any]:
    """What an operator finds out about an interrupted step: the world knows whether it took effect."""
    place = str(error).split()[0]
    assert place in ("do/mail", "undo/mail")
    happened = place in world.effects(key)
    return "mail", place == "undo/mail", None if happened else NotDone()


def ended(world: World, key: str, answer: str | Declined, *, declined: bool) -> None:
    assert world.effects(key) == expected(world, declined=declined)
    if declined:
        assert isinstance(answer, Declined)
        assert answer.args == (key,)
    else:
        assert str(answer).startswith(f"seat for {key}, order")


def finish(flow: Flow[Trip, str], world: World, key: str, trip: Trip, clock: Clock) -> str | Declined:
    """What a caller gets who repeats after each crash; what is unknown is found out in the world."""
    while True:
        clock.lapse()
        try:
            return flow.run(key, trip)
        except Declined as error:
            return error
        except Killed:
            continue
        except semel.OutcomeUnknown as error:
            step, undo, answer = told(world, key, error)
        clock.lapse()
        with contextlib.suppress(Killed):
            assert flow.resolve(key, step, answer, undo=undo)


def some(world: World, first: int) -> Iterable[int]:
    """Every boundary; a server that is slower is asked for every other one, by threads and by tasks in turn."""
    return itertools.count(first, 2) if world.url.startswith("postgres") else itertools.count(1)


@pytest.mark.parametrize(
    ("world", "declined"),
    [("memory", True), ("sqlite", True), ("postgres", True), ("redis", True), ("memory", False), ("sqlite", False)],
    indirect=["world"],
)
def test_a_crash_anywhere(world: World, boundaries: Boundaries, clock: Clock, key: str, declined: bool) -> None:
    store = semel.open_store(world.url, clock=clock)
    flow = world.flow(store)
    for boundary in some(world, 1):
        each = f"{key}-{boundary}"
        trip = Trip(each, declined)
        boundaries.arm(boundary)
        crashed = False
        try:
            flow.run(each, trip)
        except Declined:
            pass
        except Killed:
            crashed = True
            boundaries.arm(-1)
        ended(world, each, finish(flow, world, each, trip, clock), declined=declined)  # if only by a replay
        if not crashed:
            assert boundary > (25 if declined else 15)
            break
    store.close()


def test_a_crash_anywhere_async(world: World, boundaries: Boundaries, clock: Clock, key: str) -> None:
    async def finish(flow: AsyncFlow[Trip, str], each: str, trip: Trip) -> str | Declined:
        while True:
            clock.lapse()
            try:
                return await flow.run(each, trip)
            except Declined as error:
                return error
            except semel.OutcomeUnknown as error:
                step, undo, answer = told(world, each, error)
            clock.lapse()
            assert await flow.resolve(each, step, answer, undo=undo)

    async def main() -> None:
        store = semel.open_async_store(world.url, clock=clock)
        flow = world.aflow(store)
        for boundary in some(world, 2):
            each = f"{key}-{boundary}"
            trip = Trip(each, declined=True)
            boundaries.arm(boundary)
            try:
                await flow.run(each, trip)
            except Declined:
                assert boundary > 25
                break
            except Killed:
                boundaries.arm(-1)
            ended(world, each, await finish(flow, each, trip), declined=True)
        await store.close()
        await world.aclose()

    asyncio.run(main())


def test_two_crashes_anywhere(tmp_path: Path, boundaries: Boundaries, clock: Clock) -> None:
    """Every boundary of the first attempt with every seventh one of the second."""
    world = World("memory://", tmp_path / "ledger")
    flow = world.flow(semel.open_store("memory://", clock=clock))
    for first in itertools.count(1):
        for second in itertools.count(first % 7 + 1, 7):
            each = f"{first}-{second}"
            trip = Trip(each, declined=True)
            world.ledger.unlink(missing_ok=True)
            boundaries.arm(first)
            try:
                flow.run(each, trip)
            except Declined:
                assert first > 25
                return
            except Killed:
                boundaries.arm(second)
            ended(world, each, finish(flow, world, each, trip, clock), declined=True)
            if boundaries.count < second:  # the second attempt came to its end
                break


@pytest.mark.parametrize("world", KINDS[1:], indirect=True)
@pytest.mark.parametrize("boundary", [8, 16, 42])
def test_killed(world: World, clock: Clock, key: str, boundary: int) -> None:
    with start("die", world, key, "declined", boundary) as process:
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    store = semel.open_store(world.url, clock=clock)
    ended(world, key, finish(world.flow(store), world, key, Trip(key, True), clock), declined=True)
    store.close()
