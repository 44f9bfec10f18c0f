"""What a user may choose about a function or a block, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

from semel.codecs.shapes import Adapter
from semel.codecs.values import Values
from semel.core.policy import Policy
from semel.core.records import Key
from semel.errors import StoreMisconfigured
from semel.runtime.listener import OnEvent, ignore

R = TypeVar("R")
DEFAULTS = Policy()


@dataclass(frozen=True, slots=True)
class NotDone:
    """A reconciler's answer: the work did not take effect, so it may run now."""


@dataclass(frozen=True, slots=True)
class StillUnknown:
    """A reconciler's answer: whether the work took effect cannot be told yet."""


class Options(TypedDict, total=False):
    """The keyword arguments that `idempotent`, `operation`, `run` and `arun` share."""

    policy: Policy
    final_errors: Iterable[type[Exception]]
    """Errors that are answers: they are stored, and raised again for every repeat."""
    reconcile: Callable[..., object]
    """Called for an unknown outcome. It returns the result that it found out, `NotDone()` or `StillUnknown()`."""
    adapters: Mapping[type, Adapter]
    """How to turn classes that are not plain data into data, and back."""
    on_event: OnEvent


@dataclass(frozen=True, slots=True)
class CallSettings(Generic[R]):
    """The options of one function or block, with the codec that its return type and final errors need."""

    values: Values[R]
    policy: Policy
    reconcile: Callable[..., object] | None
    on_event: OnEvent

    @classmethod
    def of(cls, returns: object, options: Options) -> CallSettings[R]:
        policy = options.get("policy", DEFAULTS)
        check_policy(policy)
        reconcile = options.get("reconcile")
        if reconcile is not None and policy.takeover:
            raise StoreMisconfigured(
                'reconcile= is never asked under Policy.guarantee="at-least-once": there a repeat runs the work again. '
                'Leave one of them out; the default guarantee is "at-most-once".'
            )
        values = Values[R](returns, _errors(options.get("final_errors", ())), options.get("adapters"))
        return cls(values, policy, reconcile, options.get("on_event", ignore))


def check_policy(policy: Policy) -> None:
    """Refuse what a function cannot do. Fields that are only about HTTP (headers, methods, …) have no effect here."""
    if not isinstance(policy, Policy):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"policy= must be a semel.Policy, not {type(policy).__name__}")
    if policy.guarantee == "exactly-once":
        raise StoreMisconfigured(
            'Policy.guarantee="exactly-once" needs the record in the transaction of your writes: use '
            'semel.transaction.within(connection).operation(…), or "at-most-once" (the default) here.'
        )
    if policy.in_flight == "accept":
        raise StoreMisconfigured('Policy.in_flight="accept" is an HTTP answer: a function has "reject" or "wait"')
    instead = {"scope": "scope= of the function", "fingerprint": "fingerprint= of the function", "quota": "a limiter"}
    for name, way_out in instead.items():
        if getattr(policy, name) != getattr(DEFAULTS, name):
            raise StoreMisconfigured(f"Policy.{name} is about HTTP requests and would have no effect: use {way_out}")


def _errors(given: Any) -> tuple[type[Exception], ...]:
    errors = (given,) if isinstance(given, type) else tuple(given)
    for each in errors:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise TypeError(f"final_errors= must be exception types, not {each!r}")
    return errors


def block_key(key: str | Key, tenant: str, scope: str | None) -> Key:
    """The key of a block. A block has no name of its own, so it needs a scope."""
    if isinstance(key, Key):
        if tenant or scope is not None:
            raise TypeError("the Key has a tenant and a scope already: leave tenant= and scope= out")
        return key
    if not scope:
        raise TypeError(
            f'operation({key!r}) needs a scope: what is done, for instance scope="charge". Without one, two blocks '
            "that are given the same key would be one operation, and the second would get the first one's result"
        )
    return Key(tenant, scope, key)


def scope_of(function: Callable[..., Any], scope: str | None) -> str:
    """What is called: the chosen scope, or the function's full name."""
    if scope is not None:
        return scope
    name = getattr(function, "__qualname__", None)
    if name is None or name.endswith("<lambda>"):
        raise TypeError(f"{function!r} has no name of its own: give scope=, so that its keys are not another's")
    return f"{function.__module__}.{name}"
