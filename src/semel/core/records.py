"""The values that stores keep and exchange.

All of them are frozen; times are integers in milliseconds of the store's clock.
"""

from __future__ import annotations

import enum
import hashlib
from datetime import timedelta
from typing import Literal

from msgspec import Struct
from msgspec.structs import force_setattr

TENANT_MAX = 255
SCOPE_MAX = 1024
NAME_MAX = 255
FINGERPRINT_MAX = 255
OWNER_MAX = 64
FORMAT_MAX = 64
NOBODY = ""
"""The owner in a record that was taken from its owner. No caller can have this one."""
DURATION_MS_MAX = 10 * 366 * 24 * 3600 * 1000
"""Ten years. Every duration has a bound, so that a typing error cannot block a key for ever."""


def plain_text(field: str, value: str) -> str:
    """The characters of `value` as a plain `str`.

    Drivers and f-strings treat a subclass differently: an f-string of a `class X(str, Enum)` gives the name of the
    member. So one key would become two keys, or an error, depending on the store.
    """
    if type(value) is str:
        return value
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{field} must be text, not {type(value).__name__}")
    return str.__str__(value)


def check_text(field: str, value: str, size_max: int, *, empty: bool = False) -> str:
    """Refuse text that some store could not keep exactly: too long in UTF-8, or with NUL. Returns it as plain `str`."""
    value = plain_text(field, value)
    if 0 < len(value) <= size_max and value.isascii() and "\0" not in value:
        return value  # nearly all texts
    if not value and not empty:
        raise ValueError(f"{field} must not be empty")
    if "\0" in value:
        raise ValueError(f"{field} must not contain NUL characters")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{field} must be valid Unicode text: {error}") from None
    if size > size_max:
        raise ValueError(f"{field} has {size} bytes in UTF-8, the limit is {size_max}")
    return value


def check_duration(field: str, value_ms: int, *, least_ms: int = 1) -> int:
    """Refuse a value that is no duration, or is out of bounds.

    Returns it as a plain integer: some drivers store the name of a member of an `IntEnum`.
    """
    if not isinstance(value_ms, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{field} must be an integer in milliseconds, not {type(value_ms).__name__}")
    if not least_ms <= value_ms <= DURATION_MS_MAX:
        raise ValueError(f"{field} must be between {least_ms} and {DURATION_MS_MAX} ms, not {value_ms}")
    return int.__int__(value_ms)


def read_duration(field: str, value: object, *, least_ms: int = 1) -> int:
    """A `timedelta` in milliseconds. A number could be meant in seconds, hours or days, so it is refused."""
    if not isinstance(value, timedelta):
        raise TypeError(f"{field} must be a timedelta, for example timedelta(hours=23), not {value!r}")
    value_ms = value // timedelta(milliseconds=1)
    if not least_ms <= value_ms <= DURATION_MS_MAX:
        least, most = timedelta(milliseconds=least_ms), timedelta(milliseconds=DURATION_MS_MAX)
        raise ValueError(f"{field} must be between {least} and {most}, not {value}")
    return value_ms


def _plain_bytes(payload: object) -> bytes:
    if isinstance(payload, bytes):
        return memoryview(payload).tobytes()
    kind = type(payload).__name__
    way_out = ": write bytes(…)" if kind in ("bytearray", "memoryview") else ""
    raise TypeError(f"payload must be bytes, not {kind}{way_out}")


class Member(enum.Enum):
    """An enum whose members hash by identity, which is faster than by name: each member exists only once."""

    __hash__ = object.__hash__


class State(Member):
    """States as stored. *Unknown* is not among them: it is derived from `IN_PROGRESS` and a lapsed lease."""

    value: Literal["in_progress", "succeeded", "failed"]  # pyright: ignore[reportIncompatibleMethodOverride]

    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Key(Struct, frozen=True, gc=False):
    """The caller (tenant), what is called (scope), and the caller's name for the operation.

    The three are unique together, so no part can imitate another.
    """

    tenant: str
    scope: str
    name: str

    def __post_init__(self) -> None:
        tenant, scope, name = self.tenant, self.scope, self.name
        if type(tenant) is type(scope) is type(name) is str:
            joined = f"{tenant}{scope}{name}"
            if name and len(joined) <= TENANT_MAX and joined.isascii() and "\0" not in joined:
                return  # nearly all keys
        force_setattr(self, "tenant", check_text("tenant", tenant, TENANT_MAX, empty=True))
        force_setattr(self, "scope", check_text("scope", scope, SCOPE_MAX, empty=True))
        force_setattr(self, "name", check_text("name", name, NAME_MAX))

    @property
    def name_digest(self) -> str:
        """The name for logs, traces and lists, as a digest: knowing the name may be enough to read the answer."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """For logs and errors, without the name; `repr` shows the name."""
        return f"{self.name_digest} (tenant {self.tenant!r}, scope {self.scope!r})"


class Result(Struct, frozen=True, gc=False):
    """An answer as stored: the bytes, the format that reads them, and whether it was a success."""

    format: str
    payload: bytes
    ok: bool = True

    def __post_init__(self) -> None:
        name = self.format
        if type(name) is not str or not 0 < len(name) <= FORMAT_MAX or not (name.isascii() and name.isprintable()):
            force_setattr(self, "format", check_text("format", name, FORMAT_MAX))
        if type(self.payload) is not bytes:
            force_setattr(self, "payload", _plain_bytes(self.payload))

    @property
    def state(self) -> State:
        """The state of a record with this result."""
        return State.SUCCEEDED if self.ok else State.FAILED


class Lease(Struct, frozen=True, gc=False):
    """The executor's time-limited right to a key. `attempt` only grows while the key lives: it is the fencing token."""

    key: Key
    owner: str
    attempt: int
    until_ms: int

    def __post_init__(self) -> None:
        owner = self.owner
        if type(owner) is not str or not 0 < len(owner) <= OWNER_MAX or not (owner.isascii() and owner.isprintable()):
            force_setattr(self, "owner", check_text("owner", owner, OWNER_MAX))


class Record(Struct, frozen=True, gc=False):
    """What a store keeps for a key."""

    key: Key
    fingerprint: str
    state: State
    owner: str
    attempt: int
    created_ms: int
    lease_until_ms: int
    expires_ms: int
    completed_ms: int | None = None
    result: Result | None = None
    """The answer. A finished record without one is a tombstone: it only says that the key was used."""
    refuse_ms: int = 0
    """How long after `expires_ms` the key of a finished record is still refused."""

    @property
    def lease(self) -> Lease:
        """The lease of the current owner. A record without an owner has no valid lease."""
        return Lease(self.key, self.owner, self.attempt, self.lease_until_ms)

    def in_progress(self) -> bool:
        """Whether there is no result yet. `lapsed` tells whether its lease has run out."""
        return self.state is State.IN_PROGRESS

    def lapsed(self, now_ms: int) -> bool:
        """In progress with a lease that ran out: the outcome is unknown."""
        return self.state is State.IN_PROGRESS and now_ms >= self.lease_until_ms

    def answers(self, now_ms: int) -> bool:
        """Whether the result still answers repeats; afterwards the key may be refused for a while."""
        return self.result is not None and now_ms < self.expires_ms

    def past_retention(self, now_ms: int) -> bool:
        """Whether the record counts no more. A live lease never expires, however short the retention."""
        return now_ms >= self.expires_ms + self.refuse_ms and now_ms >= self.lease_until_ms


class Acquired(Struct, frozen=True, gc=False):
    """The claim was granted: the caller is the executor."""

    lease: Lease


class Occupied(Struct, frozen=True, gc=False):
    """The claim was not granted: this is the record that the store holds, and the time at which the store read it."""

    record: Record
    now_ms: int


Claimed = Acquired | Occupied
