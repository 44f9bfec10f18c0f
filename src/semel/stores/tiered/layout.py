"""A copy as bytes. What cannot be read here is no copy: the database is asked instead."""

from __future__ import annotations

from zlib import crc32

import msgspec

from semel.core.records import Record

VERSION = b"\1"
"""Changes with every change of `Record`, `Key` or `Result`: another version's copy is no copy."""
SUM_SIZE = 4


class Copy(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A record, and the database's time, at the latest, when the record was read there."""

    record: Record
    read_ms: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Copy).decode


def to_bytes(copy: Copy) -> bytes:
    body = _encode(copy)
    return VERSION + crc32(body).to_bytes(SUM_SIZE) + body


def to_copy(value: bytes | None) -> Copy | None:
    if value is None or value[:1] != VERSION:
        return None
    at = 1 + SUM_SIZE
    if crc32(body := value[at:]).to_bytes(SUM_SIZE) != value[1:at]:
        return None
    try:
        return _decode(body)
    except (msgspec.MsgspecError, ValueError, TypeError):
        return None
