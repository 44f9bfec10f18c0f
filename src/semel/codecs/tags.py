"""Data that says what it is: MessagePack, with an extension for each type that MessagePack does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from msgspec.msgpack import Ext

from semel.codecs.shapes import Adapter, Shape, shape_of
from semel.errors import Unstorable

DEPTH_MAX = 100
TUPLE, SET, FROZENSET, MAPPING, OBJECT, BIG, DECIMAL, UUID_, DATETIME, DATE, TIME, TIMEDELTA = range(1, 13)
AS_THEY_ARE: Final = frozenset({type(None), bool, float, str, bytes})
INT_MIN, INT_MAX = -(2**63), 2**64 - 1


class Known:
    """The classes that may be stored: these and their loaded subclasses, or (None) all that have a shape."""

    def __init__(self, classes: Iterable[type] | None, adapters: Mapping[type, Adapter]) -> None:
        self._classes = None if classes is None else frozenset(classes)
        self._named = {(cls.__qualname__, cls.__module__): cls for cls in self._classes or ()}
        self._adapters = adapters
        self._shapes: dict[type, Shape | None] = {}

    def shape(self, cls: type) -> Shape | None:
        if cls not in self._shapes:
            self._shapes[cls] = shape_of(cls, self._adapters) if self._storable(cls) else None
        return self._shapes[cls]

    def _storable(self, cls: type) -> bool:
        return self._classes is None or (
            not self._classes.isdisjoint(cls.__mro__) and self.named(cls.__qualname__, cls.__module__) is cls
        )

    def named(self, name: str, module: str) -> type:
        """The class of that name: the one in `module`, where it is still there, else the only one that there is."""
        if (known_as := self._named.get((name, module))) is not None:
            return known_as
        found = [cls for known in self._classes or () for cls in _family(known) if cls.__qualname__ == name]
        there = [cls for cls in found if cls.__module__ == module]
        if not there and len(set(found)) != 1:
            raise LookupError(f"{len(set(found)) or 'no'} known types are named {name}")
        return (there or found)[-1]  # a notebook's cell that runs again defines a class again


def _family(cls: type) -> Iterable[type]:
    yield cls
    subclasses: list[type] = type.__subclasses__(cls)
    for each in subclasses:
        yield from _family(each)


class Tagged:
    """Encodes values and makes them again. `ordered` makes equal sets and mappings equal bytes, for fingerprints."""

    def __init__(self, known: Known, *, ordered: bool = False) -> None:
        self._known = known
        self._ordered = ordered
        self._pack = msgspec.msgpack.Encoder().encode
        self._unpack = msgspec.msgpack.Decoder(ext_hook=self._untag).decode

    def encode(self, value: object) -> bytes:
        try:
            return self._pack(self._data(value, 0))
        except Unstorable:
            raise
        except Exception as error:  # of an adapter, of a property: whatever it is, the value cannot be stored
            raise Unstorable(
                f"{type(value).__name__} could not be turned into data ({type(error).__name__}: {error})."
            ) from error

    def decode(self, payload: bytes) -> object:
        value: object = self._unpack(payload)
        return value

    def _data(self, value: Any, depth: int) -> Any:
        cls = type(value)
        if cls in AS_THEY_ARE:
            return value
        if depth > DEPTH_MAX:
            raise Unstorable(f"values are nested deeper than {DEPTH_MAX}, or contain themselves")
        depth += 1
        if cls is int:
            return value if INT_MIN <= value <= INT_MAX else Ext(BIG, b"%x" % value)
        if cls is list:
            return [self._data(each, depth) for each in value]
        if cls is dict:
            return self._mapping(value, depth)
        if cls is tuple:
            return self._ext(TUPLE, [self._data(each, depth) for each in value])
        if cls in (set, frozenset):
            packed = sorted(self._pack(self._data(each, depth)) for each in value)
            return self._ext(SET if cls is set else FROZENSET, [msgspec.Raw(each) for each in packed])
        if cls in SCALARS:
            tag, to_data = SCALARS[cls]
            return self._ext(tag, to_data(value))
        shape = self._known.shape(cls)
        if shape is None:
            raise Unstorable(
                f"{cls.__module__}.{cls.__qualname__} cannot be stored: it is not among the types that the return "
                "annotation (or final_errors=) reaches. Annotate it, give adapters= for it, or return plain data."
            )
        module = "" if self._ordered else cls.__module__  # what a class is compared by survives its move
        return self._ext(OBJECT, [cls.__qualname__, module, self._data(shape.take(value), depth)])

    def _mapping(self, value: dict[Any, Any], depth: int) -> Any:
        if not self._ordered and all(type(key) is str for key in value):
            return {key: self._data(each, depth) for key, each in value.items()}
        pairs = [(self._pack(self._data(key, depth)), self._data(each, depth)) for key, each in value.items()]
        if self._ordered:
            pairs.sort(key=lambda pair: pair[0])
        return self._ext(MAPPING, [[msgspec.Raw(key), each] for key, each in pairs])

    def _ext(self, tag: int, data: object) -> Ext:
        return Ext(tag, self._pack(data))

    def _untag(self, tag: int, packed: memoryview) -> object:
        if tag == BIG:
            return int(bytes(packed), 16)
        data: Any = self._unpack(packed)
        if tag == OBJECT:
            name, module, content = data
            shape = self._known.shape(self._known.named(name, module))
            if shape is None:
                raise LookupError(f"{name} is not a type that can be stored")
            return shape.make(content)
        if tag == MAPPING:
            return dict(data)
        return FROM_DATA[tag](data)


# Types that MessagePack does not have


def _zone(zone: tzinfo | None, at: datetime | time) -> object:
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo) and zone.key is not None:
        return zone.key
    offset = at.utcoffset()
    if offset is None:
        raise Unstorable(f"{at!r} has a time zone without an offset, which cannot be stored")
    return _timedelta(offset)


def _to_zone(data: Any) -> tzinfo | None:
    if data is None:
        return None
    return ZoneInfo(data) if isinstance(data, str) else timezone(timedelta(*data))


def _timedelta(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _moment(value: datetime | time) -> object:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _zone(value.tzinfo, value)]


def _to_datetime(data: Any) -> datetime:
    text, fold, zone = data
    return datetime.fromisoformat(text).replace(fold=fold, tzinfo=_to_zone(zone))


def _to_time(data: Any) -> time:
    text, fold, zone = data
    return time.fromisoformat(text).replace(fold=fold, tzinfo=_to_zone(zone))


SCALARS: Mapping[type, tuple[int, Callable[[Any], object]]] = {
    Decimal: (DECIMAL, str),
    UUID: (UUID_, lambda value: value.bytes),
    datetime: (DATETIME, _moment),
    date: (DATE, date.isoformat),
    time: (TIME, _moment),
    timedelta: (TIMEDELTA, _timedelta),
}
FROM_DATA: Mapping[int, Callable[[Any], object]] = {
    TUPLE: tuple,
    SET: set,
    FROZENSET: frozenset,
    DECIMAL: Decimal,
    UUID_: lambda data: UUID(bytes=bytes(data)),
    DATETIME: _to_datetime,
    DATE: date.fromisoformat,
    TIME: _to_time,
    TIMEDELTA: lambda data: timedelta(*data),
}
