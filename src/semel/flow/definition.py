"""What a user chose for a flow, checked before anything runs, and where its records are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, get_type_hints

from semel.codecs.seal import Seal
from semel.codecs.sealed import find_seal
from semel.codecs.values import Raised, Returned, Values
from semel.core.fingerprint import function_digest
from semel.core.policy import Policy
from semel.core.records import NAME_MAX, Key, Result, check_text
from semel.errors import StoreMisconfigured, Unstorable
from semel.flow.steps import In, Step, StepTurn
from semel.runtime.arguments import is_async
from semel.runtime.options import DEFAULTS, CallSettings, Options

R = TypeVar("R")
INSTANCE_BYTES = 9
"""Random bytes that tell one life of a key from the next one, after its retention. They take 12 characters."""
NAME_LIMIT = NAME_MAX - 13
SCOPE_LIMIT = 512
Shape = tuple[tuple[str, str, bool], ...]
"""The steps as they are written down before the first one runs: name, kind, and whether there is an undo."""


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a flow's key. The instance is part of the fingerprint, which outlives every take-over."""

    key: Key
    fingerprint: str

    @property
    def instance(self) -> str:
        return self.fingerprint.rpartition(".")[2]

    @property
    def printed(self) -> str:
        """What makes the request this request."""
        return self.fingerprint.rpartition(".")[0]

    def at(self, place: str) -> Key:
        """The key of a record that belongs to this life: its plan, a step, or an undo."""
        key = self.key
        return Key(key.tenant, f"{key.scope}/{place}", f"{key.name}#{self.instance}")


class Definition(Generic[In, R]):
    """The steps and settings of a flow. It never changes."""

    def __init__(
        self, scope: str, steps: Iterable[Step[In]], input: type[In], returns: type[R], options: Options
    ) -> None:
        self.scope = check_text("the name of the flow", scope, SCOPE_LIMIT)
        self.steps = _check_steps(tuple(steps))
        policy = options.get("policy", DEFAULTS)
        if "reconcile" in options:
            raise TypeError("a flow has no reconcile=: flow.resolve(…) says how an interrupted step ended")
        if policy.on_store_error == "open":
            raise StoreMisconfigured(
                'Policy.on_store_error="open" would run steps without recording them: a flow must be "closed"'
            )
        CallSettings[R].of(returns, options)  # says what is wrong with them as they were given
        # A flow is taken over after a crash; what may not run twice in it is a matter of its steps.
        resumed: Options = {**options, "policy": replace(policy, guarantee="at-least-once")}
        self.settings = CallSettings[R].of(returns, resumed)
        self.step_policy = Policy(
            lease=policy.lease, retention=policy.retention, unknown_retention=policy.unknown_retention
        )
        adapters, errors = options.get("adapters"), self.settings.values.errors
        self.plans = Values[tuple[In, Shape]](tuple[input, Shape], (), adapters)  # type: ignore[valid-type]
        self._undone = Values[Any](object, errors, adapters)
        self._done = {step.name: Values[Any](_returned_by(step), errors, adapters) for step in self.steps[:-1]}
        self._done[self.steps[-1].name] = self.settings.values

    def key(self, name: str, tenant: str) -> Key:
        return Key(tenant, self.scope, check_text("the key of a flow", name, NAME_LIMIT))

    def printed(self, input: In) -> str:
        return function_digest([b"flow", self.plans.canonical(input)])

    def values(self, turn: StepTurn[In]) -> Values[Any]:
        return self._undone if turn.undo else self._done[turn.step.name]

    def encode(self, turn: StepTurn[In], ended: Returned[Any] | Raised) -> Result:
        """What is recorded of a step or undo. A result that cannot be kept is an error: later steps would lack it."""
        kept = Returned(None) if turn.undo else ended
        result = self.values(turn).encode(kept)
        size, size_max = len(result.payload), self.settings.policy.result_max
        if size > size_max:
            raise Unstorable(
                f"what {turn.place} returned has {size} bytes, and Policy.result_max is {size_max}: return less, for "
                "instance where it is"
            )
        return result

    def step(self, name: str) -> Step[In]:
        for step in self.steps:
            if step.name == name:
                return step
        raise LookupError(f"the flow {self.scope} has no step {name!r}; it has {', '.join(s.name for s in self.steps)}")

    @property
    def shape(self) -> Shape:
        return tuple((step.name, step.kind, step.undo is not None) for step in self.steps)

    def check_color(self, *, asynchronous: bool, transaction: object) -> None:
        """Refuse what could not run: a step of the other colour, or a `tx` step without transactions."""
        for step in self.steps:
            for function in (step.do, step.undo):
                if function is not None and is_async(function) is not asynchronous:
                    wanted, way_out = ("a coroutine function", "Flow") if asynchronous else ("plain", "AsyncFlow")
                    raise TypeError(f"{function!r} of the step {step.name!r} is not {wanted}: use {way_out} for it")
            if step.kind == "tx" and transaction is None:
                raise StoreMisconfigured(
                    f"the step {step.name!r} is of kind tx: give transaction=, a function whose context manager gives "
                    "a connection of the store's database and commits at its end, for instance engine.begin"
                )

    def find_seal(self, store: object) -> Seal | None:
        """What the results of `tx` steps are sealed with: that of the flow's store, which does not write them."""
        for step in self.steps:
            if step.kind == "tx":
                return find_seal(store, f"the step {step.name!r} of this flow writes its result in a transaction")
        return None


def _check_steps(steps: tuple[Step[In], ...]) -> tuple[Step[In], ...]:
    if not steps:
        raise ValueError("a flow needs at least one step")
    names = [step.name for step in steps]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two steps are called {name!r}: each is recorded under its own name")
    return steps


def _returned_by(step: Step[In]) -> object:
    """The return annotation; without one that can be read, plain data."""
    try:
        return get_type_hints(step.do, include_extras=True).get("return", object)
    except (NameError, TypeError):
        return object
