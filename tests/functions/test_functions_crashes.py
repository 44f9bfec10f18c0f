"""Executors that die, stop, fork or are cancelled. The ledger counts effects; the replies must fit it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import semel
from functions.shop import PATIENCE_S, Receipt, lines, payments, start, when_over
from semel.events import Event, EventKind
from semel.testing.clock import ManualClock
from servers.redis import RedisServer
from waiting import until

WAITING = semel.Policy(in_flight="wait", wait=PATIENCE_S)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def raced(pay: Callable[[str, int], Receipt], order: str) -> list[Receipt]:
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda _: pay(order, 5), range(2)))


def test_killed_then_unknown_then_reconciled(durable_url: str, tmp_path: Path, ledger: Path, order: str) -> None:
    done, not_done = f"{order}-done", f"{order}-not-done"
    with start(durable_url, ledger, tmp_path / "hold", "at-most-once", done, not_done) as process:
        until(lambda: len(lines(ledger)) == 2)
        process.kill()
    for each in (done, not_done):
        with pytest.raises(semel.OutcomeUnknown, match="reconcile="):
            when_over(lambda each=each: payments(durable_url, ledger)(each, 5))  # type: ignore[misc]
    with pytest.raises(semel.OutcomeUnknown, match="cannot tell yet"):
        payments(durable_url, ledger, reconcile=lambda order, amount: semel.StillUnknown())(done, 5)
    with pytest.raises(semel.OutcomeUnknown, match="bank is closed"):
        payments(durable_url, ledger, reconcile=lambda order, amount: 1 / int("bank is closed"))(done, 5)
    assert len(lines(ledger)) == 2

    both = threading.Barrier(2)  # two reconcilers are asked before either of them answers

    def it_happened(order: str, amount: int) -> Receipt:
        operation = semel.current_operation()
        assert operation is not None
        assert f"{order} 1 {operation.derive('bank')}" in lines(ledger)  # the bank knows it by this key
        return Receipt(order, amount, 10 + both.wait(PATIENCE_S))

    def it_did_not(order: str, amount: int) -> semel.NotDone:
        both.wait(PATIENCE_S)
        return semel.NotDone()

    first, second = raced(payments(durable_url, ledger, policy=WAITING, reconcile=it_happened), done)
    assert first == second == payments(durable_url, ledger)(done, 5)
    assert first.attempt in (10, 11)
    assert len(lines(ledger)) == 2
    assert (
        raced(payments(durable_url, ledger, policy=WAITING, reconcile=it_did_not), not_done)
        == [Receipt(not_done, 5, 1)] * 2
    )
    assert len(lines(ledger)) == 3  # whoever was first ran it, once


def test_a_stopped_executor_gets_what_its_successor_stored(
    durable_url: str, tmp_path: Path, ledger: Path, order: str
) -> None:
    policy = semel.Policy(guarantee="at-least-once")
    with start(durable_url, ledger, tmp_path / "hold", "at-least-once", order) as process:
        until(lambda: lines(ledger))
        process.send_signal(signal.SIGSTOP)
        receipt = when_over(lambda: payments(durable_url, ledger, policy=policy)(order, 5))
        assert receipt == Receipt(order, 5, 2)
        process.send_signal(signal.SIGCONT)  # it learns that its lease is lost, and ends
        printed, _ = process.communicate(timeout=PATIENCE_S)
    assert printed.strip() == repr(receipt)
    (first, second) = [line.split() for line in lines(ledger)]
    assert (first[1], second[1]) == ("1", "2")
    assert first[2] == second[2]  # the derived key is the same in every attempt


LAPSING = semel.Policy(guarantee="at-least-once", lease=0.03)


def kinds(events: list[Event]) -> list[EventKind]:
    return [event.kind for event in events if event.kind is not EventKind.IN_FLIGHT]


def lost(events: list[Event]) -> bool:
    return EventKind.LEASE_LOST in kinds(events)


def test_a_lost_lease_is_told_to_the_listener_of_its_own_call() -> None:
    """Both calls are on one store, which has one keeper."""
    clock = ManualClock()
    store = semel.open_store("memory://", clock=clock)
    mine, theirs, effects = list[Event](), list[Event](), list[str]()

    def succeed() -> str:
        effects.append("theirs")
        return "theirs"

    def take_over() -> str:
        clock.advance(LAPSING.lease_ms)  # a renewal may come in between: then it is in progress, and lapses again
        return semel.run("order", succeed, store=store, scope="pay", policy=LAPSING, on_event=theirs.append)

    def overtaken() -> str:
        effects.append("mine")
        assert when_over(take_over) == "theirs"
        until(lambda: lost(mine))
        return "mine"

    assert semel.run("order", overtaken, store=store, scope="pay", policy=LAPSING, on_event=mine.append) == "theirs"
    assert kinds(mine) == [EventKind.CLAIMED, EventKind.LEASE_LOST, EventKind.SUPERSEDED]
    assert kinds(theirs) == [EventKind.TAKEN_OVER, EventKind.COMPLETED]
    assert {(event.owner, event.attempt) for event in mine} == {(mine[0].owner, 1)}
    assert effects == ["mine", "theirs"]


def test_a_lost_lease_is_told_on_a_loop() -> None:
    clock = ManualClock()
    mine, theirs, effects = list[Event](), list[Event](), list[str]()

    async def main() -> str:
        store = semel.open_async_store("memory://", clock=clock)

        async def succeed() -> str:
            effects.append("theirs")
            return "theirs"

        async def overtaken() -> str:
            effects.append("mine")
            clock.advance(LAPSING.lease_ms)  # no renewal comes in between: nothing is awaited before the claim
            await semel.arun("order", succeed, store=store, scope="pay", policy=LAPSING, on_event=theirs.append)
            while not lost(mine):
                await asyncio.sleep(0.01)
            return "mine"

        return await semel.arun("order", overtaken, store=store, scope="pay", policy=LAPSING, on_event=mine.append)

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == "theirs"
    assert kinds(mine) == [EventKind.CLAIMED, EventKind.LEASE_LOST, EventKind.SUPERSEDED]
    assert kinds(theirs) == [EventKind.TAKEN_OVER, EventKind.COMPLETED]
    assert effects == ["mine", "theirs"]


def test_after_a_fork(sqlite_url: str, ledger: Path) -> None:
    pay = payments(sqlite_url, ledger)
    assert pay("parent's", 1) == Receipt("parent's", 1, 1)

    def child() -> None:
        ended_well = pay("parent's", 1) == Receipt("parent's", 1, 1) and pay("child's", 2) == Receipt("child's", 2, 1)
        os._exit(0 if ended_well else 1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    assert pay("child's", 2) == Receipt("child's", 2, 1)
    assert len(lines(ledger)) == 2


def test_cancelled_work_is_unknown_and_not_stuck() -> None:
    effects: list[str] = []

    async def main() -> None:
        store = semel.open_async_store("memory://")

        @semel.idempotent(store=store, key="order", policy=semel.Policy(lease=0.05))
        async def pay(order: str) -> int:
            effects.append(order)
            await asyncio.Event().wait()
            return 1

        task = asyncio.create_task(pay("o"))
        while not effects:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert semel.current_operation() is None
        while True:
            try:
                await pay("o")
            except semel.InProgress:
                await asyncio.sleep(0.01)

    with pytest.raises(semel.OutcomeUnknown):
        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert effects == ["o"]


def test_a_caller_who_leaves_after_the_work_loses_nothing(sqlite_url: str) -> None:
    effects: list[str] = []

    @semel.idempotent(store=sqlite_url, key="order")
    async def pay(order: str) -> int:
        effects.append(order)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # arrives at the next await, which is the one for the store
        return 7

    async def main() -> int:
        task = asyncio.create_task(pay("o"))
        with pytest.raises(asyncio.CancelledError):
            await task
        while True:
            try:
                return await pay("o")
            except semel.InProgress:
                await asyncio.sleep(0.01)

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == 7
    assert effects == ["o"]


def test_a_store_that_is_down_runs_nothing(ledger: Path) -> None:
    down = "redis://127.0.0.1:1"
    with pytest.raises(semel.StoreUnavailable):
        payments(down, ledger)("o", 5)
    assert lines(ledger) == []
    chosen = semel.Policy(on_store_error="open")
    assert payments(down, ledger, policy=chosen)("o", 5) == Receipt("o", 5, 1)
    assert len(lines(ledger)) == 1


def test_a_store_that_goes_down_during_the_work(private_redis: RedisServer) -> None:
    events: list[Event] = []

    @semel.idempotent(store=private_redis.url, key="order", policy=semel.Policy(lease=0.2), on_event=events.append)
    def pay(order: str) -> int:
        private_redis.kill()
        return 7

    assert pay("o") == 7  # the result is true; that it was not stored is an event, and an error in the log
    assert events[-1].kind is EventKind.NOT_STORED
    with pytest.raises(semel.StoreUnavailable):
        pay("o")
