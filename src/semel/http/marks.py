"""Marks on endpoints: `@idempotent(policy)` and `@idempotency_exempt`, where a rule by path would be far from the
code.

A mark is an attribute; the endpoint is called as before and needs no `request` argument. The fronts find it by asking
the framework's router before the work runs. A mark goes before the middleware's rules. An endpoint that is called
although no front has found its mark runs unprotected, and a warning in the log says so, once.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, TypeVar, cast

from semel.core.policy import Policy
from semel.errors import StoreMisconfigured
from semel.runtime.operation import current_operation

F = TypeVar("F", bound=Callable[..., Any])
ATTRIBUTE = "__semel_policy__"
DISPATCHING = ("dispatch", "dispatch_request")
"""The methods of view classes that run for every request: Starlette's and Django's, Flask's and Quart's."""
UNPROTECTED = (
    "%s is marked @idempotent, but runs unprotected: no middleware of semel has found the mark. Put one in front of "
    "the application: semel.fastapi.protect(app, ...) for FastAPI and Starlette, semel.flask.Idempotency(app, ...), "
    "semel.quart.protect(app, ...), semel.litestar.IdempotencyPlugin(...), or 'semel.django.IdempotencyMiddleware' "
    "last in Django's MIDDLEWARE."
)
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"})


class Unmarked:
    """Stands for an endpoint without a mark, because None as a mark means exempt."""


UNMARKED: Final = Unmarked()
Mark = Policy | None | Unmarked
UNSAFE = ("DELETE", "PATCH", "POST", "PUT")
"""The methods to look up where a route takes every method."""
used = False
"""Whether any endpoint of this process may have a mark: as long as none has, no router is asked.

A fast path. To ask FastAPI's router for each request costs 18 us of CPU with 5 routes, 27 with 30 and 120 with 200, as
much as the router itself needs. It equals the way that asks; `tests/http/test_marks.py` compares the two. It belongs to
the process and not to a front, because only the decorator hears of every mark: a route may be added at any time.
"""


_found: ContextVar[bool] = ContextVar("semel_mark_found", default=False)
see: Callable[[bool], object] = _found.set
"""Fronts call this for each request, if marks are used: True if its mark was found, or it needs no protection."""
logger = logging.getLogger("semel")


@dataclass(frozen=True, slots=True)
class Marked:
    """A marked operation, for the published policy: parameters of the path are written `{name}`."""

    methods: tuple[str, ...]
    path: str
    policy: Policy | None


def idempotent(policy: Policy = Policy(required=True)) -> Callable[[F], F]:
    """Protect this endpoint under `policy`, by default with a required key.

    ```python
    from semel import Policy
    from semel.fastapi import idempotent

    @idempotent(Policy(required=True, in_flight="wait"))
    def capture(payment: str) -> None: ...
    ```

    The mark only works behind a middleware of semel, which finds it by the framework's routes. Functions that are no
    endpoints need another decorator: `semel.idempotent`.
    """
    if not isinstance(policy, Policy):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("write @idempotent() or @idempotent(Policy(…))")
    if policy.guarantee == "exactly-once":
        raise StoreMisconfigured(
            "a mark cannot promise exactly-once, whose transaction is the store's: write a Rule for the route"
        )
    return lambda endpoint: _watch(_mark(endpoint, policy))


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
    """Look for marks although no decorator was used: some frameworks have their own way to write them."""
    global used
    used = True


def _mark(endpoint: F, policy: Policy | None) -> F:
    expect()
    setattr(endpoint, ATTRIBUTE, policy)
    return endpoint


def _watch(endpoint: F) -> F:
    """The marked endpoint, which warns when it runs unprotected. A class is changed in place."""
    given: object = endpoint
    if isinstance(given, type):
        _watch_class(given)
    elif isinstance(given, FunctionType) and not _yields(given):
        watching = _watch_function(given, given.__qualname__, lambda args: mark_of(watching))
        return cast(F, watching)
    return endpoint


def _watch_class(view_class: type) -> None:
    for name in DISPATCHING:
        method = getattr(view_class, name, None)
        if isinstance(method, FunctionType):
            setattr(
                view_class, name, _watch_function(method, view_class.__qualname__, lambda args: mark_of(type(args[0])))
            )


def _yields(function: FunctionType) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _watch_function(
    function: FunctionType, name: str, mark_for: Callable[[tuple[Any, ...]], Mark]
) -> Callable[..., Any]:
    """`function` with the same signature, and with the warning. A front that has claimed the key knows its policy."""
    warned = False

    def look(*args: Any) -> None:
        nonlocal warned
        if not warned and not _found.get() and current_operation() is None and mark_for(args) is not None:
            warned = True
            logger.warning(UNPROTECTED, f"{function.__module__}.{name}")

    async def in_task(*args: Any, **kwargs: Any) -> Any:
        look(*args)
        return await function(*args, **kwargs)

    def at_once(*args: Any, **kwargs: Any) -> Any:
        look(*args)
        return function(*args, **kwargs)

    watching: Callable[..., Any] = in_task if inspect.iscoroutinefunction(function) else at_once
    # Give it the globals of the endpoint's module: frameworks look there for the names in its annotations.
    made = FunctionType(watching.__code__, function.__globals__, closure=watching.__closure__)
    return functools.wraps(function)(made)
