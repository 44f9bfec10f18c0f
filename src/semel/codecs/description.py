"""Stored values of functions as plain data. No class is imported: an object is its class name and its content."""

from __future__ import annotations

from typing import Any

import msgspec

from semel.codecs.tags import BIG, FROM_DATA, FROZENSET, MAPPING, OBJECT, SET, TUPLE


def describe_value(payload: bytes) -> object:
    """A stored value as plain data, which can be printed as JSON. An object is its class and its content."""
    return _plain(_unpack(payload))


def _untag(tag: int, packed: memoryview) -> object:
    if tag == BIG:
        return int(bytes(packed), 16)
    data: Any = _unpack(packed)
    if tag == OBJECT:
        name, module, content = data
        return {"class": f"{module}.{name}", "content": content}
    if tag == MAPPING:
        return {key if isinstance(key, str) else repr(key): value for key, value in data}
    return data if tag in (TUPLE, SET, FROZENSET) else str(FROM_DATA[tag](data))


_unpack = msgspec.msgpack.Decoder(ext_hook=_untag).decode


def _plain(value: object) -> object:
    match value:
        case bytes():
            return f"(binary) {value.hex(' ')}"
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case _:
            return value
