"""What is stored for a record: one string under one key. The Lua scripts know the same layout (lua/record.lua).

The name is `prefix:{digest}`. The braces are Redis Cluster's hash tag, whatever the prefix is; the digest is of fixed
form, so no tenant, scope or name can imitate another or break out of the tag. The value names the key in full: a
collision is found, not replayed.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode
from hashlib import blake2b

from semel.core.records import Key, Record, Result, State
from semel.errors import RecordUnreadable

VERSION = 1
DIGEST_SIZE = 24
HEAD = struct.Struct(">BBIQQQQQ")
"""version, state, attempt, created_ms, lease_until_ms, expires_ms, completed_ms, refuse_ms. After it come owner,
fingerprint and frame, each with its length before it, and the answer, which is empty while in progress and in a
tombstone."""
CODES = {State.IN_PROGRESS: 0, State.SUCCEEDED: 1, State.FAILED: 2}
STATES = {code: state for state, code in CODES.items()}


def frame(key: Key) -> bytes:
    """The parts of a key, each with its length before it."""
    parts = (key.tenant.encode(), key.scope.encode(), key.name.encode())
    return b"".join([len(part).to_bytes(2) + part for part in parts])


def name_of(prefix: str, framed: bytes) -> bytes:
    """The Redis key of a record, which is also the channel on which its changes are told."""
    return b"%s:{%s}" % (prefix.encode(), urlsafe_b64encode(blake2b(framed, digest_size=DIGEST_SIZE).digest()))


def short(text: str) -> bytes:
    """Text with its length before it."""
    data = text.encode()
    return len(data).to_bytes(1) + data


def answer(result: Result) -> bytes:
    """A result as the end of a value."""
    return short(result.format) + result.payload


def to_record(value: bytes, key: Key | None = None) -> Record:
    """Read a value. What does not make sense, or is not `key`'s if one is given, is refused, never taken as absent."""
    try:
        return _decode(value, key)
    except (struct.error, KeyError, IndexError, ValueError) as error:
        whose = f"the record of {key}" if key else "a record"
        raise RecordUnreadable(
            f"{whose} is stored in a form that this version of semel does not know ({error}): "
            "it was written by a newer semel, or something else writes under the same prefix"
        ) from None


def _decode(value: bytes, key: Key | None) -> Record:
    version, code, attempt, created_ms, lease_until_ms, expires_ms, completed_ms, refuse_ms = HEAD.unpack_from(value)
    if version != VERSION:
        raise ValueError(f"format {version}")
    owner, at = _field(value, HEAD.size, 1)
    fingerprint, at = _field(value, at, 1)
    framed, at = _field(value, at, 2)
    if key is None:
        key = _unframed(framed)
    elif framed != frame(key):
        raise ValueError(f"it belongs to {_unframed(framed)}")
    state, result = STATES[code], None
    finished = state is not State.IN_PROGRESS
    if finished and at < len(value):
        format, at = _field(value, at, 1)
        result = Result(format.decode(), value[at:], ok=state is State.SUCCEEDED)
    times = (created_ms, lease_until_ms, expires_ms, completed_ms if finished else None)
    return Record(key, fingerprint.decode(), state, owner.decode(), attempt, *times, result, refuse_ms)


def _field(value: bytes, at: int, width: int) -> tuple[bytes, int]:
    start = at + width
    end = start + int.from_bytes(value[at:start])
    if end > len(value):
        raise ValueError("it is cut short")
    return value[start:end], end


def _unframed(framed: bytes) -> Key:
    tenant, at = _field(framed, 0, 2)
    scope, at = _field(framed, at, 2)
    name, _ = _field(framed, at, 2)
    return Key(tenant.decode(), scope.decode(), name.decode())
