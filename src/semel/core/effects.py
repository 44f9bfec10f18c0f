"""What a plan may ask for. A plan is a generator that yields effects and is sent their replies.

The first seven are the calls on a store. Batchers collect these values, and a store's script takes a list of them. The
arguments that a store's caller gives are `checked`. Plans need no check, because their values come from a policy that
was checked before.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from semel.core.events import Event
from semel.core.records import (
    DURATION_MS_MAX,
    FINGERPRINT_MAX,
    OWNER_MAX,
    Claimed,
    Key,
    Lease,
    Record,
    Result,
    check_duration,
    check_text,
)

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
E = TypeVar("E", bound=Struct)


class Effect(Struct, Generic[T_co], frozen=True):
    """Something that only the outside can do, typed by its reply."""


class Claim(Effect[Claimed], frozen=True, gc=False):
    key: Key
    fingerprint: str
    owner: str
    lease_ms: int
    retention_ms: int
    takeover: bool

    def checked(self) -> Self:
        fingerprint, owner, lease_ms, retention_ms = self.fingerprint, self.owner, self.lease_ms, self.retention_ms
        if (
            type(fingerprint) is type(owner) is str
            and 0 < len(fingerprint) <= FINGERPRINT_MAX
            and 0 < len(owner) <= OWNER_MAX
            and (both := fingerprint + owner).isascii()
            and both.isprintable()
            and type(lease_ms) is type(retention_ms) is int
            and 0 < lease_ms <= DURATION_MS_MAX
            and 0 < retention_ms <= DURATION_MS_MAX
        ):
            return self  # nearly all claims
        return _with(
            self,
            fingerprint=check_text("fingerprint", fingerprint, FINGERPRINT_MAX),
            owner=check_text("owner", owner, OWNER_MAX),
            lease_ms=check_duration("lease_ms", lease_ms),
            retention_ms=check_duration("retention_ms", retention_ms),
        )


class OfLease(Effect[T_co], Generic[T_co], frozen=True, gc=False):
    """A call that only the owner of a lease may make."""

    lease: Lease

    @property
    def key(self) -> Key:
        return self.lease.key


class Renew(OfLease[Lease | None], frozen=True):
    lease_ms: int
    """0 ends the lease at once: the record then shows a lapsed lease."""

    def checked(self) -> Self:
        return _with(self, lease_ms=check_duration("lease_ms", self.lease_ms, least_ms=0))


class Complete(OfLease[bool], frozen=True):
    result: Result
    retention_ms: int
    refuse_ms: int = 0
    """How long the key is still refused after its retention, when the result is gone."""

    def checked(self) -> Self:
        retention_ms, refuse_ms = self.retention_ms, self.refuse_ms
        if type(retention_ms) is type(refuse_ms) is int and 0 <= refuse_ms <= DURATION_MS_MAX >= retention_ms > 0:
            return self  # nearly all completions
        retention_ms = check_duration("retention_ms", retention_ms)
        refuse_ms = check_duration("refuse_ms", refuse_ms, least_ms=0)
        return _with(self, retention_ms=retention_ms, refuse_ms=refuse_ms)


class Release(OfLease[bool], frozen=True):
    """Give the key back."""


class Read(Effect[Record | None], frozen=True, gc=False):
    key: Key


class Within(Effect[T_co], Generic[T_co], frozen=True):
    """A call that repeats a failed one: its caller must have a reply by `due_ms` of the driver's clock."""

    call: Effect[T_co]
    due_ms: int


class Doubts(Effect[frozenset[str]], frozen=True):
    """The names of everything under way in the store that may still write a claim whose caller got no reply.

    With `before`, only those of these names that are still under way. When none are left, a claim that is not stored by
    now never will be.
    """

    before: frozenset[str] | None


class Resolve(Effect[bool], frozen=True):
    """End the unknown outcome of the attempt that the caller has read.

    It takes owner and attempt to name that: a freed key counts its attempts from 1 again.
    """

    key: Key
    owner: str
    attempt: int
    result: Result | None
    retention_ms: int

    def checked(self) -> Self:
        return _with(self, retention_ms=check_duration("retention_ms", self.retention_ms))


class Remove(Effect[bool], frozen=True):
    """Delete the record that the caller has read, or only end its retention (`expire`).

    Its times name it, too: two records without an owner cannot be told apart otherwise.
    """

    key: Key
    owner: str
    attempt: int
    created_ms: int
    completed_ms: int | None
    expire: bool = False


class Wait(Effect[int], frozen=True):
    """Sleep until `owner` no longer holds `key` in progress, at most `timeout_ms`; the reply is how long it took.

    May wake early.
    """

    key: Key
    owner: str
    timeout_ms: int


class Pause(Effect[int], frozen=True):
    """Sleep. The reply is the driver's own time afterwards, so that a plan can count what its tries took, too.

    A pause ends at `due_ms` of that clock, if that comes first.
    """

    pause_ms: int
    due_ms: int | None = None


class Emit(Effect[None], frozen=True):
    event: Event


Plan = Generator[Effect[Any], Any, T]


def _with(effect: E, **checked: object) -> E:
    """The effect with its checked fields: itself, unless the caller gave a subclass of `str` or `int`."""
    if all(value is getattr(effect, name) for name, value in checked.items()):
        return effect
    return replace(effect, **checked)


def do(effect: Effect[T]) -> Plan[T]:
    """Yield one effect and return its reply, with the type that the effect promises."""
    reply: T = yield effect
    return reply
