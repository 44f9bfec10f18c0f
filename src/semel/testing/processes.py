"""Races between processes, each of which opens the store for itself. Skipped for a store that lives in one object."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest
from msgspec.structs import replace

from semel.core.records import Key
from semel.store import Store
from semel.testing.calls import claim, complete, granted, held
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.races import SITUATIONS, prepare, the_winner
from semel.testing.samples import ANSWER

PROCESSES = 4
PATIENCE_S = 30
Job = Callable[..., Any]
"""A function of a module, called as `job(store, barrier, *args)` in another process."""


class Crew:
    """Processes that open the store for themselves. `collect` gives what each of them found out."""

    def __init__(
        self, contract: Handles, clock: ManualClock, job: Job, arguments: list[tuple[Any, ...]], *, ours: int = 0
    ) -> None:
        """One process for each of `arguments`. They share a barrier, also with `ours` threads of this process."""
        spawn = multiprocessing.get_context("spawn")
        self.barrier = spawn.Barrier(len(arguments) + ours)
        self._members: list[tuple[Any, Connection[Any, Any]]] = []
        for args in arguments:
            receiver, sender = spawn.Pipe(duplex=False)
            process = spawn.Process(
                target=_work, args=(contract, clock.now_ms, sender, job, self.barrier, args), daemon=True
            )
            process.start()
            sender.close()
            self._members.append((process, receiver))

    def collect(self) -> list[Any]:
        replies = [self._reply(process, receiver) for process, receiver in self._members]
        for process, _ in self._members:
            process.join(PATIENCE_S)
        return replies

    def _reply(self, process: Any, receiver: Connection) -> Any:
        assert receiver.poll(PATIENCE_S), f"{process} did not answer within {PATIENCE_S} s"
        reply, failure = receiver.recv()
        assert failure is None, f"in {process.name}:\n{failure}"
        return reply


def _work(
    contract: Handles, now_ms: int, replies: Connection, job: Job, barrier: Barrier, args: tuple[Any, ...]
) -> None:
    try:
        store = contract.handle(ManualClock(now_ms))
        reply = job(store, barrier, *args)
        store.close()
    except BaseException:
        barrier.abort()
        replies.send((None, traceback.format_exc()))
    else:
        replies.send((reply, None))


def race(store: Store, barrier: Barrier, keys: list[Key], owner: str) -> list[Any]:
    store.get(keys[0])  # connected before the race begins
    replies = []
    for key in keys:
        barrier.wait(PATIENCE_S)
        replies.append(claim(store, key, owner, takeover=True))
    return replies


class Processes(Handles):
    def test_of_many_processes_one_wins(self, store: Store, clock: ManualClock, key: Key) -> None:
        if not self.shared:
            pytest.skip("the store lives in one object")
        keys = {
            situation: [replace(key, scope=situation, name=f"{number}") for number in range(self.race_rounds)]
            for situation in SITUATIONS
        }
        for situation in SITUATIONS:
            prepare(store, clock, situation, keys[situation])
        every_key = [each for situation in SITUATIONS for each in keys[situation]]
        crew = Crew(self, clock, race, [(every_key, f"process {number}") for number in range(PROCESSES)])
        for each, replies in zip(every_key, zip(*crew.collect(), strict=True), strict=True):
            winner = the_winner(replies, SITUATIONS[each.scope])
            assert held(store, each).lease == winner


def forked(work: Callable[[], bool]) -> bool:
    """What `work` finds in a forked child, which has a copy of everything that the parent had opened."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system cannot fork")
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(0 if work() else 1))
    process.start()
    process.join(PATIENCE_S)
    if process.is_alive():
        process.kill()
        pytest.fail(f"the forked child did not end within {PATIENCE_S} s")
    return process.exitcode == 0


class Forks(Handles):
    def test_a_handle_that_was_used_before_a_fork_works_on_both_sides(self, store: Store, key: Key) -> None:
        if not self.shared:
            pytest.skip("the store lives in one object")
        lease = granted(claim(store, key, "parent"))
        away = replace(key, name="child")
        assert forked(lambda: complete(store, granted(claim(store, away, "child"))) and held(store, key).lease == lease)
        assert held(store, away).result == ANSWER
        assert complete(store, lease)
