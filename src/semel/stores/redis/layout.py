"""What is stored for a record: one string under one key. The Lua scripts know the same layout (lua/record.lua).

The name is `prefix:{digest}`. The braces are Redis Cluster's hash tag, whatever the prefix is; the digest is of fixed
form, so no tenant, scope or name can imitate another or break out of the tag. The value names the key in full: a
collision is found, not replayed.
"""

from __future__ import annotations

import struct
from binascii import b2a_base64
from hashlib import blake2b

from semel.core.records import Key, Record, Result, State
from semel.errors import RecordUnreadable

VERSION = 1
DIGEST_SIZE = 24
HEAD = struct.Struct(">BBI6s6s6s5sHBB")
"""version, state, attempt, created_ms, lease_until_ms, expires_ms, refuse_ms, and the sizes of frame, owner and
fingerprint. These three follow, then the answer, which is empty while in progress and in a tombstone. The lease of a
finished record ended when it was completed."""
SUCCEEDED, FAILED = 1, 2
STATES = (State.IN_PROGRESS, State.SUCCEEDED, State.FAILED)


def frame(key: Key) -> bytes:
    """The parts of a key; none of them can contain the NUL that is between them."""
    return f"{key.tenant}\0{key.scope}\0{key.name}".encode()


def name_of(prefix: bytes, framed: bytes) -> bytes:
    """The Redis key of a record, which is also the channel on which its changes are told."""
    return b"%b:{%b}" % (prefix, b2a_base64(blake2b(framed, digest_size=DIGEST_SIZE).digest(), newline=False))


def answer(result: Result) -> bytes:
    """A result as the end of a value: the format, with its length before it, and the bytes."""
    format = result.format.encode()
    return b"%c%b%b" % (len(format), format, result.payload)


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
    version, code, attempt, created, lease_until, expires, refuse, *sizes = HEAD.unpack_from(value)
    if version != VERSION:
        raise ValueError(f"format {version}")
    owner_at = HEAD.size + sizes[0]
    fingerprint_at = owner_at + sizes[1]
    answer_at = fingerprint_at + sizes[2]
    framed = value[HEAD.size : owner_at]
    if answer_at > len(value):
        raise ValueError("it is cut short")
    if key is None:
        key = _unframed(framed)
    elif framed != frame(key):
        raise ValueError(f"it belongs to {_unframed(framed)}")
    owner, fingerprint = value[owner_at:fingerprint_at].decode(), value[fingerprint_at:answer_at].decode()
    lease_until_ms, completed_ms, result = _ms(lease_until), None, None
    if code:
        completed_ms, result = lease_until_ms, _result(value, answer_at, code)
    times_ms = (_ms(created), lease_until_ms, _ms(expires), completed_ms)
    return Record(key, fingerprint, STATES[code], owner, attempt, *times_ms, result, _ms(refuse))


def _result(value: bytes, at: int, code: int) -> Result | None:
    if at == len(value):
        return None
    end = at + 1 + value[at]
    if end > len(value):
        raise ValueError("it is cut short")
    return Result(value[at + 1 : end].decode(), value[end:], code == SUCCEEDED)


_ms = int.from_bytes


def _unframed(framed: bytes) -> Key:
    tenant, scope, name = framed.decode().split("\0")
    return Key(tenant, scope, name)
