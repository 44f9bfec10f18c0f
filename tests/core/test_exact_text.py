"""Values that reach a store are plain text and plain bytes, whatever subclass a caller gives: drivers, f-strings and
comparisons take a subclass for different things."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, IntEnum
from typing import Any

import pytest
from msgspec.structs import replace

from semel.core.effects import Claim, Complete, Renew, Resolve
from semel.core.records import Key, Lease, Result
from semel.store import Filter


class Word(str, Enum):  # noqa: UP042
    """What an f-string makes of a member is the member's name."""

    TENANT = "tenant"
    SCOPE = "scope"
    NAME = "näme"
    OWNER = "owner"
    FINGERPRINT = "1.f"
    FORMAT = "format"


class Loud(str):
    """Says something else in every way in which text can be asked."""

    __slots__ = ()

    def __str__(self) -> str:
        return "loud"

    def __format__(self, _: str) -> str:
        return "loud"

    def __iter__(self) -> Iterator[str]:
        return iter("loud")

    def encode(self, *_: Any) -> bytes:
        return b"loud"


class Chunk(bytes):
    __slots__ = ()

    def __bytes__(self) -> bytes:
        return b"other"


class Span(IntEnum):
    SHORT = 5


def kinds(*values: object) -> set[type]:
    return {type(value) for value in values}


@pytest.mark.parametrize("name", [Word.NAME, Loud("näme")])
def test_the_parts_of_a_key_are_plain_text(name: str) -> None:
    key = Key(Word.TENANT, Word.SCOPE, name)
    assert kinds(key.tenant, key.scope, key.name) == {str}
    assert f"{key.tenant}/{key.scope}/{key.name}" == "tenant/scope/näme"
    assert (key, hash(key)) == (Key("tenant", "scope", "näme"), hash(Key("tenant", "scope", "näme")))
    assert kinds(replace(Key("", "", "n"), name=name).name) == {str}


def test_a_subclass_is_held_to_the_same_limits() -> None:
    with pytest.raises(ValueError, match="name has 256 bytes"):
        Key("", "", Loud("n" * 256))
    with pytest.raises(ValueError, match="name must not be empty"):
        Key("", "", Loud(""))


def test_an_owner_and_a_fingerprint_are_plain_text() -> None:
    lease = Lease(Key("", "", "n"), Word.OWNER, 1, 0)
    claim = Claim(Key("", "", "n"), Word.FINGERPRINT, Loud("owner"), 1, 1, False).checked()
    assert kinds(lease.owner, claim.owner, claim.fingerprint) == {str}
    assert f"{lease.owner} {claim.owner} {claim.fingerprint}" == "owner owner 1.f"


def test_a_result_is_plain_bytes_in_a_format_of_plain_text() -> None:
    result = Result(Word.FORMAT, Chunk(b"paid"))
    assert (kinds(result.format), kinds(result.payload)) == ({str}, {bytes})
    assert (f"{result.format}", result.payload) == ("format", b"paid")


@pytest.mark.parametrize("payload", [bytearray(b"paid"), memoryview(b"paid")])
def test_bytes_that_may_still_change_are_refused(payload: Any) -> None:
    with pytest.raises(TypeError, match=r"payload must be bytes, not (bytearray|memoryview): write bytes\(…\)"):
        Result("format", payload)


def test_durations_are_plain_integers() -> None:
    lease, result = Lease(Key("", "", "n"), "owner", 1, 0), Result("f", b"")
    claim = Claim(lease.key, "1.f", "owner", Span.SHORT, Span.SHORT, False).checked()
    complete = Complete(lease, result, Span.SHORT, Span.SHORT).checked()
    renew, resolve = Renew(lease, Span.SHORT).checked(), Resolve(lease.key, "o", 1, None, Span.SHORT).checked()
    durations = (claim.lease_ms, claim.retention_ms, complete.retention_ms, complete.refuse_ms)
    assert (*durations, renew.lease_ms, resolve.retention_ms) == (5,) * 6
    assert kinds(*durations, renew.lease_ms, resolve.retention_ms) == {int}


def test_what_operators_look_for_is_plain_text() -> None:
    wanted = Filter(tenant=Word.TENANT, scope=Word.SCOPE, name_prefix=Word.NAME)
    assert kinds(wanted.tenant, wanted.scope, wanted.name_prefix) == {str}
    assert wanted == Filter(tenant="tenant", scope="scope", name_prefix="näme")
