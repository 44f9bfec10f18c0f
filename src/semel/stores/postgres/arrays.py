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
    oid = OIDS.get(type(first))
    if oid is None:
        raise TypeError(f"no array of {type(first).__name__} is part of our statements")
    if len(items) > 1 and items.count(first) == len(items):
        return _head(oid, len(items)) + array([first])[HEAD_SIZE:] * len(items)
    return _head(oid, len(items)) + WRITERS[oid](items)


def _texts(items: list[str]) -> bytes:
    size = len(items[0])
    if size < SHORT:
        before = f"\0\0\0{chr(size)}"
        joined = before + before.join(items)
        if len(set(map(len, items))) == 1 and joined.isascii():
            return joined.encode()
    return _sized([item.encode() for item in items])


def _sized(items: list[bytes]) -> bytes:
    return b"".join([part for item in items for part in (pack("!i", len(item)), item)])


def _numbers(items: list[int]) -> bytes:
    return pack("!" + "iq" * len(items), *chain.from_iterable((8, item) for item in items))


def _flags(items: list[bool]) -> bytes:
    return pack("!" + "i?" * len(items), *chain.from_iterable((1, item) for item in items))


def _head(oid: int, size: int) -> bytes:
    """One dimension, no NULLs, the type of the items, how many, counted from 1."""
    return pack("!iiiii", 1, 0, oid, size, 1)


HEAD_SIZE = len(_head(TEXT, 1))
OIDS: dict[type, int] = {str: TEXT, bytes: BYTEA, int: INT8, bool: BOOL}
WRITERS: dict[int, Callable[[list[Any]], bytes]] = {TEXT: _texts, BYTEA: _sized, INT8: _numbers, BOOL: _flags}
