"""Runs a plan against a script: what it must ask for, in order, and what it is told."""

from typing import Any, TypeVar

from core.life import KEY
from semel.core.effects import Effect, Emit, Pause, Plan
from semel.errors import StoreError, StoreUnavailable
from semel.events import Event, EventKind

T = TypeVar("T")
Step = tuple[Effect[Any], object]
AWAY = StoreUnavailable("the store does not answer")


def play(plan: Plan[T], *script: Step) -> T:
    """Return the plan's value. An exception in the place of a reply is thrown into the plan."""
    given: object = None
    clock_ms = 0
    for position, (expected, reply) in enumerate(script):
        asked = plan.throw(given) if isinstance(given, StoreError) else plan.send(given)
        assert asked == expected, f"step {position}"
        given = reply
        if isinstance(expected, Pause) and reply is None:  # tries take no time here unless a step says so
            given = clock_ms = clock_ms + expected.pause_ms
    try:
        asked = plan.throw(given) if isinstance(given, StoreError) else plan.send(given)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError(f"the script is over, and the plan asks for {asked}")


def unanswered(call: Effect[Any], *pauses_ms: int) -> list[Step]:
    """The call fails before each pause."""
    return [step for pause_ms in pauses_ms for step in ((call, AWAY), (Pause(pause_ms), None))]


def cut_off(due_ms: int) -> StoreUnavailable:
    """The failure of a call that had to be answered by `due_ms`."""
    failure = StoreUnavailable("the connection was reset")
    failure.due_ms = due_ms
    return failure


def told(kind: EventKind, attempt: int = 0, detail: str = "") -> Step:
    return Emit(Event(kind, KEY, attempt, detail)), None
