"""Executors that are stopped and come back, and several that recover at once, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import semel
from flow.conftest import KINDS
from flow.test_flow_crashes import BACK, FORWARD, expected
from flow.trips import PATIENCE_S, Boundaries, Clock, Declined, Killed, Trip, World, start
from waiting import until


@contextmanager
def stopped_in(world: World, key: str, place: str, gate: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process has done `place`, and stops before it can record that."""
    gate.touch()
    with start("wait", world, key, "declined", place, gate) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"in {place}\n"
            os.kill(process.pid, signal.SIGSTOP)
            yield process
        finally:
            process.kill()


def wake(process: subprocess.Popen[str], gate: Path) -> None:
    gate.unlink()
    os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("world", KINDS[1:], indirect=True)
@pytest.mark.parametrize("place", ["do/hold", "undo/hold"])
def test_who_was_stopped_is_refused_while_the_successor_goes_back(
    world: World, clock: Clock, tmp_path: Path, key: str, place: str
) -> None:
    gate = tmp_path / "gate"
    said: list[str] = []
    with stopped_in(world, key, place, gate) as zombie:

        def come_back(at: str) -> None:
            if at == "undo/hold":
                wake(zombie, gate)
                said.append(zombie.communicate(timeout=PATIENCE_S)[0])

        world.hook = come_back
        store = semel.open_store(world.url, clock=clock)
        clock.lapse()
        with pytest.raises(Declined):
            world.flow(store).run(key, Trip(key, declined=True))
    assert said == ["InProgress\n"]  # it has no answer of its own: the successor is still working
    assert world.effects(key) == [*FORWARD, *BACK]
    store.close()


@pytest.mark.parametrize("world", ["postgres"], indirect=True)
def test_the_fence_is_in_the_transaction(world: World, clock: Clock, tmp_path: Path, key: str) -> None:
    """Stopped with an open transaction. The successor waits for it; what comes back finds another owner, and leaves."""
    gate = tmp_path / "gate"
    store = semel.open_store(world.url, clock=clock)
    with stopped_in(world, key, "do/order", gate) as zombie, ThreadPoolExecutor(1) as threads:
        clock.lapse()
        successor = threads.submit(world.flow(store).run, key, Trip(key, declined=True))
        until(lambda: (record := store.get(semel.Key("", "trips", key))) is not None and record.attempt == 2)
        wake(zombie, gate)
        with pytest.raises(Declined):
            successor.result(PATIENCE_S)
        assert zombie.communicate(timeout=PATIENCE_S)[0] in ("InProgress\n", "Declined\n")  # whatever the store holds
    assert world.effects(key) == [*FORWARD, *BACK]
    with world.begin() as connection:
        rows = connection.execute("SELECT place, attempt FROM orders WHERE key = %s ORDER BY at", (key,)).fetchall()
    assert rows == [("do/order", 2), ("undo/order", 2)]
    store.close()


@pytest.mark.parametrize("world", KINDS[1:], indirect=True)
def test_two_processes_recover_at_once(world: World, boundaries: Boundaries, clock: Clock, key: str) -> None:
    store = semel.open_store(world.url, clock=clock)
    flow = world.flow(store)
    keys: dict[str, bool] = {}
    for boundary in (5, 8, 11, 16, 26, 29, 44, 46):  # none of them while a mail is being sent
        each = f"{key}-{boundary}"
        keys[each] = declined = boundary in (8, 16) or boundary > 28
        boundaries.arm(boundary)
        with pytest.raises(Killed):
            flow.run(each, Trip(each, declined))
    boundaries.arm(-1)
    clock.lapse()
    processes = [start("recover", world, clock.ahead_ms) for _ in range(2)]
    ended: list[str] = []
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    with ThreadPoolExecutor(2) as threads:
        for said in threads.map(lambda process: process.communicate("\n", PATIENCE_S)[0], processes):
            ended += said.split()
    for each, declined in keys.items():
        assert world.effects(each) == expected(world, declined=declined)
    assert set(ended) == set(keys)
    assert flow.recover().ended == ()
    store.close()


def test_many_first_callers(world: World, clock: Clock, key: str) -> None:
    store = semel.open_store(world.url, clock=clock)
    flow = world.flow(store, policy=semel.Policy(in_flight="wait", wait=PATIENCE_S))
    together = threading.Barrier(6)

    def call(_: int) -> str:
        together.wait(PATIENCE_S)
        return flow.run(key, Trip(key))

    with ThreadPoolExecutor(6) as threads:
        answers = set(threads.map(call, range(6)))
    assert len(answers) == 1
    assert world.effects(key) == expected(world, declined=False)
    store.close()
