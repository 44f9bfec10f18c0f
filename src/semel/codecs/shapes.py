"""Which classes can be stored as data, and how an object is taken apart and made again.

An object is made from its fields, as they were: nothing is validated, computed or converted a second time (only a
`msgspec.Struct` is always made by its constructor). A field that the class has got since then has its default.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

Adapter = tuple[Callable[[Any], object], Callable[[Any], object]]
"""How objects of a class of yours become data, and back: `(Money.to_text, Money.parse)`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How objects of one class become data that a codec knows, and back."""

    take: Callable[[Any], object]
    make: Callable[[Any], object]


def shape_of(cls: type, adapters: Mapping[type, Adapter]) -> Shape | None:
    """The shape of `cls`, or None when its objects are more than data."""
    if cls in adapters:
        return Shape(*adapters[cls])
    if issubclass(cls, enum.Enum):
        return Shape(lambda member: member.value, cls)
    if issubclass(cls, BaseException):
        return _exception(cls)
    if issubclass(cls, msgspec.Struct):
        return Shape(lambda value: {name: getattr(value, name) for name in cls.__struct_fields__}, lambda d: cls(**d))
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return Shape(list, lambda data: tuple.__new__(cls, data))
    if hasattr(cls, "__pydantic_fields__") and hasattr(cls, "model_construct"):
        return _pydantic(cls)
    if dataclasses.is_dataclass(cls):
        return _dataclass(cls)
    if hasattr(cls, "__attrs_attrs__"):
        return _attrs(cls)
    return None


def field_names(cls: Any) -> list[str]:
    """The names of the fields that an object of `cls` holds. Other annotated names are not stored."""
    if issubclass(cls, msgspec.Struct):
        return list(cls.__struct_fields__)
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return list(cls._fields) if hasattr(cls, "_fields") else [field.name for field in cls.__attrs_attrs__]


def _dataclass(cls: Any) -> Shape:
    fields = dataclasses.fields(cls)

    def make(data: dict[str, object]) -> object:
        given = {field.name: data[field.name] for field in fields if field.name in data}
        for field in fields:
            if field.name in given:
                continue
            if field.default is not dataclasses.MISSING:
                given[field.name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                given[field.name] = field.default_factory()
            else:
                raise LookupError(
                    f"{cls.__qualname__}.{field.name} has no default, and the stored value does not have it"
                )
        return _set(cls.__new__(cls), given)

    return Shape(lambda value: _get(value, (field.name for field in fields)), make)


def _attrs(cls: Any) -> Shape:
    fields = cls.__attrs_attrs__

    def make(data: dict[str, object]) -> object:
        if all(field.name in data for field in fields):
            return _set(cls.__new__(cls), {field.name: data[field.name] for field in fields})
        return cls(**{field.alias: data[field.name] for field in fields if field.init and field.name in data})

    return Shape(lambda value: _get(value, (field.name for field in fields)), make)


def _pydantic(cls: Any) -> Shape:
    def take(value: Any) -> object:
        fields = {name: getattr(value, name) for name in cls.__pydantic_fields__}
        private = dict(value.__pydantic_private__ or {})
        return [{**fields, **(value.__pydantic_extra__ or {})}, sorted(value.__pydantic_fields_set__), private]

    def make(data: tuple[dict[str, object], list[str], dict[str, object]]) -> object:
        fields, fields_set, private = data
        made = cls.model_construct(_fields_set=set(fields_set), **fields)
        for name, value in private.items():
            setattr(made, name, value)
        return made

    return Shape(take, make)


def _exception(cls: type[BaseException]) -> Shape:
    """What an exception was raised with, and its attributes. Causes and tracebacks belong to the process."""
    slots = [name for base in cls.__mro__ for name in _slots(base)]

    def take(error: BaseException) -> object:
        state = {name: getattr(error, name) for name in slots if hasattr(error, name)}
        return [list(error.args), {**state, **error.__dict__}]

    def make(data: tuple[list[object], dict[str, object]]) -> object:
        args, state = data
        error = cls.__new__(cls, *args)
        error.args = tuple(args)
        return _set(error, state)

    return Shape(take, make)


def _slots(cls: type) -> Iterable[str]:
    names: str | Iterable[str] = vars(cls).get("__slots__", ())
    return [name for name in ([names] if isinstance(names, str) else names) if not name.startswith("__")]


def _get(value: object, names: Iterable[str]) -> dict[str, object]:
    return {name: getattr(value, name) for name in names}


def _set(value: object, fields: Mapping[str, object]) -> object:
    for name, field in fields.items():
        object.__setattr__(value, name, field)  # frozen ones, too
    return value
