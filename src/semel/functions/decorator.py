"""`@idempotent(…)` for functions and methods, `run(…)` and `arun(…)` for single calls."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ParamSpec, TypeVar, TypeVarTuple, Unpack, cast

from semel.core.records import Key
from semel.functions.arguments import Arguments, Chosen
from semel.functions.function import ANNOTATED, Function, checked
from semel.runtime.arguments import check_options, is_async
from semel.runtime.options import Options, block_key, scope_of
from semel.store import AsyncStore, Store

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


def idempotent(
    *,
    store: Store | AsyncStore | str,
    key: Chosen,
    tenant: Chosen | None = None,
    fingerprint: Chosen | Iterable[str] | None = None,
    scope: str | None = None,
    returns: object = ANNOTATED,
    **options: Unpack[Options],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function take effect once for each key, sync or async; every repeat gets the first result.

    ```python
    import semel

    @semel.idempotent(store="sqlite:///semel.db", key="order")
    def pay(order: str, amount: int) -> str:
        return f"{amount} paid for {order}"

    pay("order-1", 10)  # runs
    pay("order-1", 10)  # gets the stored result
    ```

    `key`, `tenant` and `fingerprint` are paths into the arguments (`"cmd.payment_intent_id"`) or functions of them. By
    default the fingerprint is all arguments, `scope` is the function's full name, and `returns` is its return
    annotation. Give `scope` to a function that may be moved or renamed. HTTP endpoints need another `idempotent`, that
    of `semel.asgi`, `semel.flask` or `semel.django`.

    A repeat with another fingerprint raises `KeyReused`, one that comes while the first call runs `InProgress`, and one
    after a crash `OutcomeUnknown`, by default. An error of the function that is not among `final_errors` leaves the
    outcome unknown.
    """
    check_options(options, Options, idempotent)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        arguments = Arguments(checked(function), key, tenant, fingerprint)
        once = Function[Any](function, store, returns, options)
        where = scope_of(function, scope)

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            bound = arguments.bind(args, kwargs)
            name = Key(arguments.tenant(bound), where, arguments.name(bound))
            return once.call(name, arguments.compared(bound), args, kwargs)

        async def acall(*args: P.args, **kwargs: P.kwargs) -> Any:
            bound = arguments.bind(args, kwargs)
            name = Key(arguments.tenant(bound), where, arguments.name(bound))
            return await once.acall(name, arguments.compared(bound), args, kwargs)

        wrapped = acall if is_async(function) else call
        return cast("Callable[P, R]", functools.wraps(function)(wrapped))

    return decorate


def run(
    key: str | Key,
    function: Callable[[Unpack[Ts]], R],
    *args: *Ts,
    store: Store | AsyncStore | str,
    scope: str | None = None,
    tenant: str = "",
    returns: object = ANNOTATED,
    **options: Unpack[Options],
) -> R:
    """Call `function(*args)` once for `key`; a repeat gets its result, and one with other arguments is refused.

    ```python
    import semel

    def refund(amount: int) -> str:
        return f"{amount} paid back"

    semel.run("order-1", refund, 10, store="sqlite:///semel.db")
    ```

    Arguments that must be named go into a `functools.partial`, which then needs a `scope`.
    """
    check_options(options, Options, run)
    if is_async(function):
        raise TypeError("run() is for sync functions: write `await semel.arun(…)` for this one")
    once = Function[R](checked(function), store, returns, options)
    return once.call(_key(key, tenant, function, scope), args, args, {})


async def arun(
    key: str | Key,
    function: Callable[[Unpack[Ts]], Awaitable[R]],
    *args: *Ts,
    store: Store | AsyncStore | str,
    scope: str | None = None,
    tenant: str = "",
    returns: object = ANNOTATED,
    **options: Unpack[Options],
) -> R:
    """`run` for a coroutine function, with an async store or a URL."""
    check_options(options, Options, arun)
    if not is_async(function):
        raise TypeError("arun() is for coroutine functions: call semel.run(…) for this one")
    once = Function[R](checked(function), store, returns, options)
    return await once.acall(_key(key, tenant, function, scope), args, args, {})


def _key(key: str | Key, tenant: str, function: Callable[..., object], scope: str | None) -> Key:
    return block_key(key, tenant, scope if isinstance(key, Key) else scope_of(function, scope))
