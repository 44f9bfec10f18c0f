"""The steps of a flow, and what their functions are given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, Literal, TypeVar

from semel.core.records import Lease, plain_text
from semel.runtime.keeper import Kept
from semel.runtime.operation import Operation

In = TypeVar("In")
C = TypeVar("C")
Kind = Literal["keyed", "tx", "unsafe"]
STEP_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class FlowOperation(Operation, Generic[In]):
    """The flow, for the function of one of its steps. `attempt` grows with every take-over of the flow."""

    __slots__ = ("_place", "input", "results", "step_key")

    def __init__(
        self, lease: Lease, kept: Kept | None, turn: StepTurn[In], input: In, results: Mapping[str, object]
    ) -> None:
        super().__init__(lease, kept)
        self.input: In = input
        self.results: Mapping[str, object] = MappingProxyType(dict(results))
        """What the finished steps returned, by name. An undo finds its own step here only if that had finished."""
        self._place = turn.place
        self.step_key = self.derive(turn.place)
        """The key for the service that this step calls: the same in every attempt, and another one for the undo."""

    def _message_id(self, number: int) -> str:
        """Each step counts its own messages."""
        return self.derive(f"semel.outbox/{self._place}/{number}")


@dataclass(frozen=True, slots=True)
class Step(Generic[In]):
    """One step; made with `keyed`, `tx` or `unsafe`. Its undo is of the same kind."""

    name: str
    kind: Kind
    do: Callable[..., object]
    undo: Callable[..., object] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", plain_text("the name of a step", self.name))
        if not STEP_NAME.fullmatch(self.name):
            raise ValueError(f"the name of a step is 1 to 100 letters, digits, '_', '.' or '-', not {self.name!r}")
        for what, function in (("do", self.do), ("undo", self.undo)):
            if not callable(function) and not (what == "undo" and function is None):
                raise TypeError(f"{what} of the step {self.name!r} must be a function, not {function!r}")


@dataclass(frozen=True, slots=True)
class StepTurn(Generic[In]):
    """A step, on the way forward or back."""

    step: Step[In]
    undo: bool = False

    @property
    def place(self) -> str:
        return f"{'undo' if self.undo else 'do'}/{self.step.name}"

    @property
    def function(self) -> Callable[..., object]:
        function = self.step.undo if self.undo else self.step.do
        assert function is not None
        return function


def keyed(
    name: str,
    do: Callable[[FlowOperation[In]], object],
    undo: Callable[[FlowOperation[In]], object] | None = None,
) -> Step[In]:
    """A step that calls a service that deduplicates by `op.step_key`. It runs again after a crash with that key."""
    return Step(name, "keyed", do, undo)


def tx(
    name: str,
    do: Callable[[FlowOperation[In], C], object],
    undo: Callable[[FlowOperation[In], C], object] | None = None,
) -> Step[In]:
    """A step that writes with the connection it is given: its writes and its record commit together, exactly once.

    The connection comes from the flow's `transaction`, which must be on the database of the flow's store.
    """
    return Step(name, "tx", do, undo)


def unsafe(
    name: str,
    do: Callable[[FlowOperation[In]], object],
    undo: Callable[[FlowOperation[In]], object] | None = None,
) -> Step[In]:
    """A step whose effects nothing deduplicates: it is entered at most once.

    If it is cut off, its outcome is unknown, and the flow waits for `Flow.resolve`.
    """
    return Step(name, "unsafe", do, undo)
