"""A function that is called through a block, and what is checked before it runs."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Generic, TypeVar, get_type_hints

from semel.core.records import Key
from semel.errors import Superseded, Unstorable
from semel.runtime.arguments import is_async
from semel.runtime.blocks import Block
from semel.runtime.host import async_host_of, host_of
from semel.runtime.options import CallSettings, Options, scope_of
from semel.store import AsyncStore, Store

R = TypeVar("R")


class Annotated:
    """Stands for a return type that is taken from the function's own annotation."""


ANNOTATED = Annotated()


class Function(Generic[R]):
    """A function with its options. It changes at most once: when its annotation can be read."""

    def __init__(
        self, function: Callable[..., Any], store: Store | AsyncStore | str, returns: object, options: Options
    ) -> None:
        self._function = function
        self._store = store
        self._returns = returns
        self._options = options
        self._settings: CallSettings[R] | None = None
        (async_host_of if is_async(function) else host_of)(store)  # fails at once if the store does not fit
        if inspect.iscoroutinefunction(options.get("reconcile")) and not is_async(function):
            raise TypeError("reconcile= is a coroutine function, and the function is not: give a plain function")
        CallSettings[R].of(object, options)
        with contextlib.suppress(NameError):  # a class that is defined further down: the first call reads it
            self._settings = self._read()

    def call(self, key: Key, compared: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
        block = self._block(key, compared, args, kwargs)
        try:
            with block as operation:
                if not operation.replayed:
                    operation.result = self._function(*args, **kwargs)
        except Superseded:
            if not block.operation.replayed:  # raised by the work itself
                raise
        return block.operation.result

    async def acall(self, key: Key, compared: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
        block = self._block(key, compared, args, kwargs)
        try:
            async with block as operation:
                if not operation.replayed:
                    operation.result = await self._function(*args, **kwargs)
        except Superseded:
            if not block.operation.replayed:
                raise
        return block.operation.result

    def _block(self, key: Key, compared: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Block[R]:
        settings = self._settings or self._read_now()
        asked = settings.reconcile
        reconcile = None if asked is None else functools.partial(asked, *args, **kwargs)
        try:
            return Block(key, compared, self._store, settings, reconcile)
        except Unstorable as error:
            raise Unstorable(
                f"the arguments of {key.scope} cannot be compared with those of a repeat: {error} Choose what makes a "
                'call this call, for instance fingerprint=("order_id", "amount"). Nothing was run.'
            ) from None

    def _read(self) -> CallSettings[R]:
        returns = self._returns
        if returns is ANNOTATED:
            returns = _return_annotation(self._function)
        return CallSettings[R].of(returns, self._options)

    def _read_now(self) -> CallSettings[R]:
        try:
            self._settings = self._read()
        except NameError as error:
            raise Unstorable(
                f"the return annotation of {scope_of(self._function, None)} cannot be read ({error}), so semel cannot "
                "tell whether its result can be stored: give returns=TheType. Nothing was run."
            ) from None
        return self._settings


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse a callable that has no single result."""
    if isinstance(function, (classmethod, staticmethod)):
        raise TypeError(f"write @{type(function).__name__} above @semel.idempotent(…), not below")
    if isinstance(function, type) or not callable(function):
        raise TypeError(f"semel protects functions and methods, and {function!r} is neither")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{scope_of(function, None)} is a generator: it has no single result to store. Protect the function that "
            "consumes it, or return a list."
        )
    return function


def _return_annotation(function: Any) -> object:
    """The return annotation alone: annotations of parameters may name types that only type checkers import."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function if hasattr(function, "__qualname__") else type(function).__call__)
    returns: dict[str, Any] = {"return": getattr(function, "__annotations__", {}).get("return", object)}
    names = {**getattr(function, "__globals__", {}), **_closure(function)}
    return get_type_hints(SimpleNamespace(__annotations__=returns), names, include_extras=True)["return"]


def _closure(function: Any) -> dict[str, object]:
    """The variables of a function's closure: classes may be defined there, in a test or in a notebook's cell."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    found: dict[str, object] = {}
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        with contextlib.suppress(ValueError):  # not defined yet
            found[name] = cell.cell_contents
    return found
