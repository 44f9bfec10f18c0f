"""What a return annotation says about the values to come: which classes it reaches, and what can never be stored."""

from __future__ import annotations

import collections.abc as abc
import types
import typing
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from semel.codecs.shapes import Adapter, field_names, shape_of
from semel.errors import Unstorable

PLAIN = frozenset(
    {type(None), bool, int, float, str, bytes, list, dict, tuple, set, frozenset}
    | {Decimal, UUID, datetime, date, time, timedelta}
)
OPEN = frozenset({Any, object, None, typing.NoReturn, typing.Never, typing.LiteralString, ...})
"""Annotations that say nothing about the value: the value itself is checked when it is stored."""
CONTAINERS: tuple[object, ...] = (
    *(abc.Sequence, abc.MutableSequence, abc.Mapping, abc.MutableMapping, abc.Set, abc.MutableSet),
    *(abc.Collection, abc.Iterable, abc.Container, abc.Sized, abc.Hashable),
)
"""Names for what lists, dictionaries and sets can do."""


def classes_in(annotation: object, adapters: Mapping[type, Adapter]) -> set[type]:
    """The classes that `annotation` reaches, or `Unstorable` when it names one that is more than data.

    A name that is not defined yet is a `NameError`: ask again when the module is complete.
    """
    found: set[type] = set()
    waiting: list[tuple[object, bool]] = [(annotation, True)]
    while waiting:
        each, needed = waiting.pop()
        if _among(each, OPEN) or _among(each, PLAIN) or _among(each, CONTAINERS) or _among(each, found):
            continue
        if (inner := _inner(each)) is not None:
            waiting += [(part, needed) for part in inner]
        elif isinstance(each, type) and shape_of(each, adapters) is not None:
            found.add(each)
            # An exception need not be plain data: what cannot be stored shows when one is raised.
            needed = needed and not issubclass(each, BaseException)
            waiting += [(part, needed) for part in (() if each in adapters else _fields(each))]
        elif needed:
            raise Unstorable(
                f"{_name(each)} cannot be stored as a result. Results are plain data, dataclasses, enums, pydantic or "
                "attrs models; for a class of yours give adapters={TheClass: (to_data, from_data)}."
            )
    return found


def _among(annotation: object, those: Iterable[object]) -> bool:
    try:
        return annotation in those
    except TypeError:  # annotations may be unhashable
        return False


def _inner(annotation: object) -> Iterable[object] | None:
    """What an annotation is made of, or None for a class."""
    if isinstance(annotation, typing.NewType):
        return [annotation.__supertype__]
    if isinstance(annotation, typing.TypeVar):
        return [*annotation.__constraints__, annotation.__bound__ or Any]
    if (alias := getattr(annotation, "__value__", None)) is not None:  # type X = …
        return [alias]
    if typing.is_typeddict(annotation):
        return get_type_hints(annotation).values()
    origin = get_origin(annotation)
    if origin is typing.Literal:
        return {type(value) for value in get_args(annotation)}
    if origin is typing.Annotated:
        return get_args(annotation)[:1]
    if origin in (typing.Union, types.UnionType, typing.Required, typing.NotRequired, typing.Final, typing.ClassVar):
        return get_args(annotation)
    return None if origin is None else [origin, *get_args(annotation)]


def _fields(cls: Any) -> Iterable[object]:
    """The annotations of what an object of `cls` holds."""
    if issubclass(cls, Enum):
        return ()
    if issubclass(cls, BaseException):
        return [*_hints(cls), *_hints(cls.__init__)]
    if hasattr(cls, "__pydantic_fields__"):
        return [field.annotation for field in cls.__pydantic_fields__.values()]
    hints = get_type_hints(cls)
    return [hints[name] for name in field_names(cls) if name in hints]


def _hints(of: Any) -> Iterable[object]:
    try:
        return get_type_hints(of).values()
    except NameError:
        return ()


def _name(annotation: object) -> str:
    return f"{annotation.__module__}.{annotation.__qualname__}" if isinstance(annotation, type) else repr(annotation)
