"""Marks on endpoints: `@idempotent(policy)` and `@idempotency_exempt`, where a rule by path would be far from the
code.

A mark is an attribute; the endpoint is called as before and needs no `request` argument. The fronts find it by asking
the framework's router before the work runs. A mark goes before the middleware's rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from semel.core.policy import Policy
from semel.errors import StoreMisconfigured

F = TypeVar("F", bound=Callable[..., Any])
ATTRIBUTE = "__semel_policy__"
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"})


class Unmarked:
    """Says that an endpoint has no mark; None as a mark means exempt."""


UNMARKED: Final = Unmarked()
Mark = Policy | None | Unmarked
UNSAFE = ("DELETE", "PATCH", "POST", "PUT")
"""What is asked for where a route takes every method."""
used = False
"""Whether any endpoint may have a mark: without one, no router has to be asked."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A marked operation, for the published policy: parameters of the path are written `{name}`."""

    methods: tuple[str, ...]
    path: str
    policy: Policy | None


def idempotent(policy: Policy = Policy(required=True)) -> Callable[[F], F]:
    """Protect this endpoint under `policy`, by default with a required key."""
    if not isinstance(policy, Policy):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("write @idempotent() or @idempotent(Policy(…))")
    if policy.guarantee == "exactly-once":
        raise StoreMisconfigured(
            "a mark cannot promise exactly-once, whose transaction is the store's: write a Rule for the route"
        )
    return lambda endpoint: _mark(endpoint, policy)


def idempotency_exempt(endpoint: F) -> F:
    """Leave this endpoint alone, whatever the rules say."""
    return _mark(endpoint, None)


def mark_of(endpoint: object) -> Mark:
    mark: Mark = getattr(endpoint, ATTRIBUTE, UNMARKED)
    return mark


def nearest_mark(endpoint: object, method: str) -> Mark:
    """The mark that stands nearest to the code: on the method of a view class, on the class, on the endpoint itself."""
    view_class = endpoint if isinstance(endpoint, type) else getattr(endpoint, "view_class", None)
    for place in (getattr(view_class, method.lower(), None), view_class, endpoint):
        if not isinstance(mark := mark_of(place), Unmarked):
            return mark
    return UNMARKED


def marked(path: str, methods: Iterable[str], mark_for: Callable[[str], Mark]) -> Iterator[Marked]:
    """The marks of one route: one entry for each mark, with the methods that it is about."""
    found: dict[int, tuple[Policy | None, list[str]]] = {}
    for method in sorted(methods):
        mark = mark_for(method)
        if isinstance(mark, Unmarked) or method in SAFE or (mark is not None and method not in mark.methods):
            continue
        found.setdefault(id(mark), (mark, []))[1].append(method)
    for policy, names in found.values():
        yield Marked(tuple(names), path, policy)


def methods_of(view_class: object) -> list[str]:
    """The unsafe methods that a class of views has handlers for."""
    return [method for method in UNSAFE if hasattr(view_class, method.lower())]


def expect() -> None:
    """Have marks looked for although no decorator was used: a framework has its own way to write them."""
    global used
    used = True


def _mark(endpoint: F, policy: Policy | None) -> F:
    expect()
    setattr(endpoint, ATTRIBUTE, policy)
    return endpoint
