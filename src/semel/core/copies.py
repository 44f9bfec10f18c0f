"""What a tiered store asks of its front, which holds copies of the records of a database.

A copy is written only by the holder of a ticket. The ticket stands in the place of the copy from before the database is
read until the copy is written. Whatever changes the record meanwhile takes the ticket away, so a late copy of an old
record is refused, however late it is.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from semel.core.effects import Effect
from semel.core.records import Key

T_co = TypeVar("T_co", covariant=True)
NO_COPY = b"\0"
"""How everything begins that stands in the place of a copy and is none."""
TICKET_MS = 5_000
"""How long a ticket stands, so also how late a copy may be."""


class CopyCall(Effect[T_co], Generic[T_co], frozen=True, gc=False):
    """`place` names the database, so that two of them can share a front."""

    place: str
    key: Key


class FindCopy(CopyCall[bytes | None], frozen=True, gc=False):
    """What stands in the place of the copy."""


class OpenCopy(CopyCall[bool], frozen=True, gc=False):
    """Put `ticket` there for `TICKET_MS`, if there is nothing."""

    ticket: bytes


class PutCopy(CopyCall[bool], frozen=True, gc=False):
    """Replace `ticket`, if it still stands there, by `value`, for `life_ms`."""

    ticket: bytes
    value: bytes
    life_ms: int


class ForbidCopy(CopyCall[bool], frozen=True, gc=False):
    """Take away what stands there, and give no ticket for `forbid_ms`, which may be 0. The reply is True."""

    forbid_ms: int
