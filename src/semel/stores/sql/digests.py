"""A key as a few bytes, by which the SQL stores find its record: an index of them is small whatever keys look like.

The first two tell the tenant, so that one tenant's records lie together; the others the whole key.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from struct import Struct

from semel.core.records import Key

TENANT_SIZE = 2
SIZE = 15
"""With what PostgreSQL puts before them, this is the most that fits into the smallest entries of an index."""
TENANTS_MAX = 4096
"""How many tenants' beginnings are remembered."""
NUMBER = Struct(">q")


def digest_of(key: Key) -> bytes:
    return _long(key)[:SIZE]


def number_of(key: Key) -> int:
    """The first eight bytes as a signed number. Callers who try make keys that share one: tell them apart."""
    number: int = NUMBER.unpack_from(_long(key))[0]
    return number


def numbers_of(tenant: str) -> tuple[int, int]:
    """Between these are the numbers of all keys of a tenant."""
    begins = tenant_of(tenant)
    [first], [last] = (NUMBER.unpack(begins.ljust(8, filled)) for filled in (b"\0", b"\xff"))
    return first, last


@lru_cache(TENANTS_MAX)
def tenant_of(tenant: str) -> bytes:
    """What the digests of all keys of a tenant begin with, and those of one in 65 536 others."""
    return sha256(tenant.encode()).digest()[:TENANT_SIZE]


def _long(key: Key) -> bytes:
    """No part of a key contains NUL, so none can imitate the end of one and the start of another."""
    return tenant_of(key.tenant) + sha256(f"{key.tenant}\0{key.scope}\0{key.name}".encode()).digest()
