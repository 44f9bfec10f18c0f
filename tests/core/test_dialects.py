"""The dialects as data, and the keys that are made for them."""

import re
import uuid

import pytest

from semel.core.dialects import (
    AWS_EC2,
    DIALECTS,
    DRAFT_07,
    HOUR_MS,
    PAYPAL,
    RANDOM_BYTES,
    REPEATABILITY,
    SQUARE,
    TIME_MS_MAX,
    KeyFormat,
    KeyQuoting,
    check_key,
    form_field,
    make_key,
    quote_key,
)
from semel.core.keys import parse_key
from semel.core.policy import Policy

RANDOM = bytes(range(RANDOM_BYTES))
NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_says_where_its_key_stands_and_who_says_so(name: str) -> None:
    dialect = DIALECTS[name]
    assert dialect.name == name
    assert dialect.source.startswith("https://")
    assert [bool(dialect.header), bool(dialect.body_field), dialect.put is not None].count(True) == 1
    assert dialect.retention_ms > 0
    assert not set(dialect.reused) & set(dialect.busy)


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_takes_the_keys_that_are_made_for_it(name: str) -> None:
    for kind in KeyFormat:
        assert check_key(make_key(kind, RANDOM, NOW_MS, "pay:42"), DIALECTS[name])


def test_what_services_do_differently() -> None:
    assert (DRAFT_07.header, DRAFT_07.quoting) == ("Idempotency-Key", KeyQuoting.QUOTED)
    assert (PAYPAL.header, PAYPAL.retention_ms) == ("PayPal-Request-Id", 3 * HOUR_MS)
    assert (SQUARE.header, SQUARE.body_field) == ("", "idempotency_key")
    assert REPEATABILITY.first_sent_header == "Repeatability-First-Sent"


def test_a_random_uuid() -> None:
    key = uuid.UUID(make_key(KeyFormat.UUID4, RANDOM, NOW_MS, ""))
    assert (key.version, key.variant) == (4, uuid.RFC_4122)
    assert key == uuid.UUID("00010203-0405-4607-8809-0a0b0c0d0e0f")


@pytest.mark.parametrize("random", [bytes(RANDOM_BYTES), b"\xff" * RANDOM_BYTES, RANDOM])
def test_a_uuid_that_begins_with_the_time(random: bytes) -> None:
    key = uuid.UUID(make_key(KeyFormat.UUID7, random, NOW_MS, ""))
    assert (key.version, key.variant) == (7, uuid.RFC_4122)
    assert int.from_bytes(key.bytes[:6]) == NOW_MS


def test_a_ulid() -> None:
    assert make_key(KeyFormat.ULID, bytes(RANDOM_BYTES), 0, "") == "0" * 26
    assert make_key(KeyFormat.ULID, b"\xff" * RANDOM_BYTES, TIME_MS_MAX, "") == "7" + 25 * "Z"
    # The example of the ULID specification: this is its time.
    assert make_key(KeyFormat.ULID, RANDOM, 1_469_922_850_259, "").startswith("01ARZ3NDEK")
    assert re.fullmatch("[0-7][0-9A-HJKMNP-TV-Z]{25}", make_key(KeyFormat.ULID, RANDOM, NOW_MS, ""))


@pytest.mark.parametrize("kind", [KeyFormat.UUID7, KeyFormat.ULID])
def test_keys_sort_by_age(kind: KeyFormat) -> None:
    keys = [make_key(kind, random, now_ms, "") for now_ms in (5, 6, 7_000) for random in (RANDOM, RANDOM[::-1])]
    assert sorted(keys[::2]) == keys[::2]
    assert len(set(keys)) == 6


def test_a_derived_key_follows_from_the_name_alone() -> None:
    key = make_key(KeyFormat.DERIVED, RANDOM, NOW_MS, "pay:42")
    assert key == make_key(KeyFormat.DERIVED, RANDOM[::-1], 0, "pay:42") == "e8324b41-bb71-5c3f-b952-fe5f418098c6"
    assert key != make_key(KeyFormat.DERIVED, RANDOM, NOW_MS, "pay:43")


def test_a_key_takes_all_of_its_random_bytes() -> None:
    with pytest.raises(ValueError, match="a key takes 16 random bytes, not 15"):
        make_key(KeyFormat.UUID4, RANDOM[1:], NOW_MS, "")
    for now_ms in (-1, TIME_MS_MAX + 1):
        with pytest.raises(ValueError, match="now_ms must be between 0 and"):
            make_key(KeyFormat.UUID7, RANDOM, now_ms, "")


@pytest.mark.parametrize("key", ["plain", 'with "quotes"', "back\\slash", "a b"])
def test_a_quoted_key_is_read_as_it_was(key: str) -> None:
    assert parse_key(quote_key(key, KeyQuoting.QUOTED).encode(), Policy(key_format="strict")) == key
    assert quote_key(key, KeyQuoting.BARE) == key


def test_a_form_takes_the_key_as_one_more_field() -> None:
    put = form_field("ClientToken")
    assert put(b"Action=RunInstances&Name=a+b%26c", "k 1") == b"Action=RunInstances&Name=a+b%26c&ClientToken=k+1"
    assert put(b"", "k1") == b"ClientToken=k1"
    assert AWS_EC2.put is not None
    assert AWS_EC2.put(b"A=1", "k1") == b"A=1&ClientToken=k1"
    for taken in (b"ClientToken=mine", b"A=1&ClientToken=", b"Client%54oken=mine"):
        with pytest.raises(ValueError, match="the form has a field ClientToken already: leave it out"):
            put(taken, "k1")


def test_a_key_that_the_service_would_refuse_is_refused_before_it_is_sent() -> None:
    assert check_key("k" * 45, SQUARE) == "k" * 45
    with pytest.raises(ValueError, match="key has 46 characters, and the dialect square allows 45"):
        check_key("k" * 46, SQUARE)
    for bad in ("schlüssel", "line\nbreak"):
        with pytest.raises(ValueError, match="printable ASCII"):
            check_key(bad, DRAFT_07)
    with pytest.raises(ValueError, match="key must not be empty"):
        check_key("", DRAFT_07)


def test_a_dialect_has_new_keys_of_a_format() -> None:
    assert DRAFT_07.making(KeyFormat.ULID).format is KeyFormat.ULID
    with pytest.raises(TypeError, match=r"KeyFormat\.UUID7, not 'ulid'"):
        DRAFT_07.making("ulid")  # type: ignore[arg-type]
