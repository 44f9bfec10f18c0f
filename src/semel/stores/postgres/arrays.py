"""Lists as PostgreSQL's binary arrays, also for psycopg's own cursors.

psycopg writes arrays as text, item by item in Python: that was a third of the cost of a batch. Ours are flat lists of
one type without NULLs. The statements cast every array, so nobody need know the type.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from struct import pack
from typing import Any

from psycopg.adapt import Dumper
from psycopg.pq import Format

TEXT, BYTEA, INT8, BOOL = 25, 17, 20, 16
SHORT = 128
"""Below this, the four bytes of a size are characters that UTF-8 writes as they are."""


class ArrayDumper(Dumper):
    """Register it for `list` on connections that run our statements and nothing else."""

    format = Format.BINARY
    oid = 0

    def dump(self, obj: list[Any]) -> bytes:
        return array(obj)


def packed(value: Any) -> bytes | None:
    """A parameter of a batch: a list, or the time."""
    match value:
        case list():
            return array(value)
        case int():
            return pack("!q", value)
        case None:
            return None
        case other:
            raise TypeError(f"no {type(other).__name__} is a parameter of a batch")


def array(items: list[Any]) -> bytes:
    """Most columns of a batch have one value, or values of one size: those need no Python for each item."""
    first = items[0]
    kind = KINDS.get(type(first))
    if kind is None:
        raise TypeError(f"no array of {type(first).__name__} is part of our statements")
    oid, one, many = kind
    count = len(items)
    if count == 1:
        return HEADS_OF_ONE[oid] + one(first)
    if items.count(first) == count:
        return _head(oid, count) + one(first) * count
    return _head(oid, count) + many(items)


def _text(item: str) -> bytes:
    return _bytes(item.encode())


def _texts(items: list[str]) -> bytes:
    size = len(items[0])
    if size < SHORT:
        before = f"\0\0\0{chr(size)}"
        joined = before + before.join(items)
        if len(set(map(len, items))) == 1 and joined.isascii():
            return joined.encode()
    return b"".join([_text(item) for item in items])


def _bytes(item: bytes) -> bytes:
    return pack("!i", len(item)) + item


def _all_bytes(items: list[bytes]) -> bytes:
    if len(set(map(len, items))) == 1:
        before = pack("!i", len(items[0]))
        return before + before.join(items)
    return b"".join([part for item in items for part in (pack("!i", len(item)), item)])


def _number(item: int) -> bytes:
    return pack("!iq", 8, item)


def _numbers(items: list[int]) -> bytes:
    return pack("!" + "iq" * len(items), *chain.from_iterable((8, item) for item in items))


def _flag(item: bool) -> bytes:
    return pack("!i?", 1, item)


def _flags(items: list[bool]) -> bytes:
    return pack("!" + "i?" * len(items), *chain.from_iterable((1, item) for item in items))


def _head(oid: int, size: int) -> bytes:
    """One dimension, no NULLs, the type of the items, how many, counted from 1."""
    return pack("!iiiii", 1, 0, oid, size, 1)


HEADS_OF_ONE = {oid: _head(oid, 1) for oid in (TEXT, BYTEA, INT8, BOOL)}
KINDS: dict[type, tuple[int, Callable[[Any], bytes], Callable[[list[Any]], bytes]]] = {
    str: (TEXT, _text, _texts),
    bytes: (BYTEA, _bytes, _all_bytes),
    int: (INT8, _number, _numbers),
    bool: (BOOL, _flag, _flags),
}
"""How one item is written, and how many different ones are, by the type of the first."""
