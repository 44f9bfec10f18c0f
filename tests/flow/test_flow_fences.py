"""An attempt that was overtaken without noticing, at the points between two things that it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import semel
from flow.trips import Clock
from semel.flow import AsyncFlow, Flow, FlowOperation, Step, keyed, unsafe
from semel.flow.definition import Life

Op = FlowOperation[str]
KEY = semel.Key("", "f", "k")


def taken_over(store: semel.Store, clock: Clock) -> Life:
    """Somebody else has the flow from now on."""
    clock.lapse()
    record = store.get(KEY)
    assert record is not None
    claim: Any = {"owner": "successor", "lease_ms": 60_000, "retention_ms": 60_000}
    assert isinstance(store.claim(KEY, record.fingerprint, takeover=True, **claim), semel.Acquired)
    return Life(KEY, record.fingerprint)


def after(store: semel.Store, call: str, number: int, act: Callable[[], object]) -> None:
    """Do `act` when `store` has answered this call for the `number`-th time."""
    original = getattr(store, call)
    answered = 0

    def hooked(*args: Any, **kwargs: Any) -> Any:
        nonlocal answered
        reply = original(*args, **kwargs)
        answered += 1
        if answered == number:
            act()
        return reply

    setattr(store, call, hooked)


def made(store: semel.Store, effects: list[str], kind: Callable[..., Step[str]]) -> Flow[str, None]:
    steps = [kind(name, lambda op, name=name: effects.append(name)) for name in "ab"]
    return Flow("f", steps, store=store, input=str, returns=type(None))


@pytest.mark.parametrize("kind", [keyed, unsafe])
def test_overtaken_between_two_steps(store: semel.Store, clock: Clock, kind: Callable[..., Step[str]]) -> None:
    effects: list[str] = []
    after(store, "complete", 2, lambda: taken_over(store, clock))  # the plan, and a
    with pytest.raises(semel.InProgress):
        made(store, effects, kind).run("k", "x")
    assert effects == ["a"]


@pytest.mark.parametrize("kind", [keyed, unsafe])
@pytest.mark.parametrize("lapsed", [True, False])
def test_overtaken_before_a_step_that_the_successor_has_begun(
    store: semel.Store, clock: Clock, kind: Callable[..., Step[str]], lapsed: bool
) -> None:
    effects: list[str] = []

    def begun() -> None:
        life = taken_over(store, clock)
        lease: Any = {"lease_ms": 1 if lapsed else 60_000, "retention_ms": 60_000}
        store.claim(life.at("do/b"), life.printed, owner="2.successor", takeover=False, **lease)

    after(store, "renew", 2, begun)  # before a, and before b
    with pytest.raises(semel.InProgress):
        made(store, effects, kind).run("k", "x")
    assert effects == ["a"]
    record = store.get(KEY)
    assert record is not None
    held = store.get(Life(KEY, record.fingerprint).at("do/b"))
    assert held is not None
    assert held.owner == "2.successor"


def test_another_life_of_the_key_has_steps_of_its_own(store: semel.Store, clock: Clock) -> None:
    effects: list[str] = []

    def slow(op: Op) -> None:
        effects.append("a")
        clock.ahead_ms += 3_600_000

    def failing(op: Op) -> None:
        effects.append("b")
        raise ConnectionError

    policy = semel.Policy(unknown_retention=24 * 3600)
    flow = Flow("f", [keyed("a", slow), keyed("b", failing)], store=store, input=str, returns=type(None), policy=policy)
    with pytest.raises(ConnectionError):
        flow.run("k", "x")
    clock.ahead_ms += 23 * 3_600_000 + 60_000
    assert store.get(KEY) is None  # and a is remembered for an hour more
    with pytest.raises(ConnectionError):
        flow.run("k", "x")
    assert effects == ["a", "b", "a", "b"]


def test_a_caller_who_leaves_takes_nothing_with_it(clock: Clock, tmp_path: Path) -> None:
    """Cancelled while a step is being recorded: it is recorded all the same."""
    effects: list[str] = []

    async def once(op: Op) -> str:
        effects.append("once")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # arrives at the next await, which is the one for the store
        return "done"

    async def main() -> str:
        store = semel.open_async_store(f"sqlite:///{tmp_path}/semel.db", clock=clock)
        flow = AsyncFlow("f", [unsafe("once", once)], store=store, input=str, returns=str)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(flow.run("k", "x"))
        clock.lapse()
        answer = await flow.run("k", "x")
        await store.close()
        return answer

    assert asyncio.run(main()) == "done"
    assert effects == ["once"]
