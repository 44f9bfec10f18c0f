"""How the arguments of a call become its key, its tenant and its fingerprint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from inspect import BoundArguments
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from semel.core.records import plain_text

Chosen = str | Callable[..., object]
"""A path into the arguments (`"cmd.payment_intent_id"`), or a function of the same arguments."""


class Arguments:
    """The chosen key, tenant and fingerprint of one function, checked against its parameters."""

    def __init__(
        self,
        function: Callable[..., object],
        key: Chosen,
        tenant: Chosen | None,
        fingerprint: Chosen | Iterable[str] | None,
    ) -> None:
        self._function = function
        self._owners: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
        self._name = getattr(function, "__qualname__", repr(function))
        self._signature = inspect.signature(function)
        self._key = self._reader("key", key)
        self._tenant = None if tenant is None else self._reader("tenant", tenant)
        self._fingerprint = self._fingerprinter(fingerprint)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BoundArguments:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound

    def name(self, bound: BoundArguments) -> str:
        name = self._key(bound)
        if isinstance(name, (int, UUID)) and not isinstance(name, bool):
            return _text(name)
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"the key of {self._name}() must be text, an integer or a UUID, not {name!r}; nothing was run"
            )
        return _text(name)

    def tenant(self, bound: BoundArguments) -> str:
        tenant = "" if self._tenant is None else self._tenant(bound)
        if tenant is not None and not isinstance(tenant, (str, int, UUID)):
            raise TypeError(f"the tenant of {self._name}() must be text or None, not {type(tenant).__name__}")
        return "" if tenant is None else _text(tenant)

    def compared(self, bound: BoundArguments) -> object:
        """What identifies this call: a repeat with other values is refused."""
        return self._fingerprint(bound)

    def _all(self, bound: BoundArguments) -> dict[str, object]:
        """All arguments, without the object or class that a method belongs to."""
        names = list(bound.arguments)
        own = 1 if names and names[0] in ("self", "cls") and self._is_method_of(bound.arguments[names[0]]) else 0
        return {name: bound.arguments[name] for name in names[own:]}

    def _is_method_of(self, first: object) -> bool:
        """Whether the function is a method of `first`, an object or a class. A plain function may take one, too."""
        owner = first if isinstance(first, type) else type(first)
        if (known := self._owners.get(owner)) is None:
            known = self._owners[owner] = is_method_in(owner, self._function)
        return known

    def _fingerprinter(self, chosen: Chosen | Iterable[str] | None) -> Callable[[BoundArguments], object]:
        if chosen is None:
            return self._all
        if isinstance(chosen, str) or callable(chosen):
            return self._reader("fingerprint", chosen)
        readers = [self._reader("fingerprint", path) for path in chosen]
        return lambda bound: [read(bound) for read in readers]

    def _reader(self, option: str, chosen: Chosen) -> Callable[[BoundArguments], object]:
        if not isinstance(chosen, str):
            function = chosen
            return lambda bound: function(*bound.args, **bound.kwargs)
        first, *rest = chosen.split(".")
        self._check_parameter(option, chosen, first)

        def read(bound: BoundArguments) -> object:
            value: object = bound.arguments[first]
            for step in rest:
                value = _step(value, step, f"{option}={chosen!r} of {self._name}()")
            return value

        return read

    def _check_parameter(self, option: str, path: str, first: str) -> None:
        if first not in self._signature.parameters:
            has = ", ".join(self._signature.parameters) or "none"
            raise TypeError(f"{option}={path!r}: {self._name}() has no parameter {first!r}; it has {has}")


def is_method_in(owner: type, function: Callable[..., object]) -> bool:
    """Whether `owner`, or a class that it inherits from, has `function` as a method that is given its object or class.

    Found there under its name, or else by where it was defined: another decorator may hide it.
    """
    name, place = getattr(function, "__name__", ""), getattr(function, "__qualname__", "").rpartition(".")[0]
    found = inspect.getattr_static(owner, name, None)
    if isinstance(found, staticmethod):
        return False
    inner = found.__func__ if isinstance(found, classmethod) else found
    if callable(inner) and inspect.unwrap(inner) is inspect.unwrap(function):
        return True
    return any((base.__qualname__, base.__module__) == (place, function.__module__) for base in owner.__mro__)


def _text(value: str | int | UUID) -> str:
    """A value as part of a key. A member of an enum counts by its text or number, not by its name."""
    if isinstance(value, str):
        return plain_text("a part of a key", value)
    return int.__repr__(value) if isinstance(value, int) else str(value)


def _step(value: Any, step: str, where: str) -> object:
    try:
        found: object = value[step] if isinstance(value, Mapping) else getattr(value, step)
    except (KeyError, AttributeError):
        raise ValueError(f"{where}: {type(value).__name__} has no {step!r}; nothing was run") from None
    return found
