"""The key as it stands in a header: RFC 9651 Strings, the bare form, and everything that is refused."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel import Policy
from semel.core.keys import KeyMalformed, parse_key, read_key

ANY = Policy()
STRICT = Policy(key_format="strict")
UUID = "8e03978e-40d5-43dd-bc93-6894a57f9324"


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"abc", "abc"),
        (b'"abc"', "abc"),
        (b"  abc\t ", "abc"),
        (b' "abc" ', "abc"),
        (b'"a b, c"', "a b, c"),
        (rb'"say \"hi\" \\ bye"', r'say "hi" \ bye'),
        (b'"abc";foo=bar', "abc"),
        (b'"abc"; foo=1; bar=1.5;baz; q="x;y";t=a/b:c;b=:aGk=:;y=?1;d=@1659578233;u=%"f%c3"', "abc"),
        (b"a;b=c", "a;b=c"),
        (b"!#$%&'()*+-./:;<=>?@[\\]^_`{|}~", "!#$%&'()*+-./:;<=>?@[\\]^_`{|}~"),
        (b"k" * 255, "k" * 255),
        (b'"' + b"k" * 255 + b'"', "k" * 255),
        (b'"' + b'\\"' * 255 + b'"', '"' * 255),
    ],
)
def test_a_readable_key(value: bytes, key: str) -> None:
    assert parse_key(value, ANY) == key


@pytest.mark.parametrize(
    "value",
    [
        b"", b"  \t", b'""', b'"', b'"abc', b'abc"', b'a"b', b"a,b", b"a b", b"a\tb", b"a\x00b", b"a\x7f",
        b"caf\xc3\xa9", b"\xff",
        b'"caf\xc3\xa9"', b'"a\x00"', b'"a\tb"', rb'"a\nb"', b'"a\\"', b'"a" b', b'"a""b"', b'"a", "b"', b'"a";',
        b'"a";=1',
        b'"a";Foo=1', b'"a" ;foo=1', b'"a";foo=1234567890123456', b'"a";foo=1.2345', b'"a";foo="', b'"a"\t;foo',
        b"k" * 256, b'"' + b"k" * 256 + b'"', b"k" * 70_000,
    ],
)  # fmt: skip
def test_a_malformed_key_is_never_ignored(value: bytes) -> None:
    with pytest.raises(KeyMalformed) as refused:
        parse_key(value, ANY)
    assert "abc" not in str(refused.value)


def test_the_message_says_how_long_it_is_and_may_be() -> None:
    with pytest.raises(KeyMalformed, match="256 characters; 1 to 255"):
        parse_key(b"k" * 256, ANY)


@given(
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters='",'), min_size=1, max_size=255)
)
def test_quoted_and_bare_are_the_same_key(content: str) -> None:
    bare = content.encode()
    quoted = b'"' + bare.replace(b"\\", b"\\\\") + b'"'
    assert parse_key(bare, ANY) == parse_key(quoted, ANY) == parse_key(quoted, STRICT) == content


@given(st.binary(max_size=300))
def test_any_bytes_are_a_key_or_refused(value: bytes) -> None:
    try:
        key = parse_key(value, ANY)
    except KeyMalformed:
        return
    assert 1 <= len(key) <= 255
    assert key.isascii()
    assert key.isprintable()


@pytest.mark.parametrize("value", [b'"' + b'\\"' * 30_000, b'"a"' + b'; a="' * 15_001, b'"a"' + b';a="\\' * 15_000])
def test_hostile_values_are_refused_in_no_time(value: bytes) -> None:
    started = time.thread_time()
    with pytest.raises(KeyMalformed):
        parse_key(value, ANY)
    assert time.thread_time() - started < 1


@pytest.mark.parametrize(
    ("policy", "good", "bad"),
    [
        (Policy(key_format="uuid"), UUID.encode(), b"8e03978e40d543ddbc936894a57f9324"),
        (Policy(key_format="uuid"), f'"{UUID}"'.encode(), b"8e03978e-40d5-43dd-bc93-6894a57f932g"),
        (Policy(key_format="ulid"), b"01ARZ3NDEKTSV4RRFFQ69G5FAV", b"81ARZ3NDEKTSV4RRFFQ69G5FAV"),
        (Policy(key_format="ulid"), b"01arz3ndektsv4rrffq69g5fav", b"01ARZ3NDEKTSV4RRFFQ69G5FAU"),
        (STRICT, b'"abc"', b"abc"),
        (Policy(key_format=re.compile("order-[0-9]+")), b"order-12", b"order-12x"),
    ],
)
def test_formats(policy: Policy, good: bytes, bad: bytes) -> None:
    assert parse_key(good, policy) == good.decode().strip('"')
    with pytest.raises(KeyMalformed):
        parse_key(bad, policy)


def headers(*pairs: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in pairs]


def read(*pairs: tuple[str, str]) -> str | None:
    return read_key(headers(*pairs), ANY)


def test_no_header_is_no_key() -> None:
    assert read(("accept", "*/*")) is None


def test_either_header_carries_the_key_whatever_its_case() -> None:
    assert read(("Idempotency-Key", "a")) == read(("x-idempotency-key", '"a"')) == "a"


def test_other_headers_may_be_repeated() -> None:
    assert read(("cookie", "a=1"), ("idempotency-key", "a"), ("cookie", "b=2")) == "a"


def test_alternatives_that_agree() -> None:
    assert read(("idempotency-key", '"a"'), ("x-idempotency-key", "a")) == "a"


@pytest.mark.parametrize(
    "pairs",
    [
        [("idempotency-key", "a"), ("x-idempotency-key", "b")],
        [("idempotency-key", "a"), ("idempotency-key", "b")],
        [("idempotency-key", "a"), ("idempotency-key", "a")],
        [("idempotency-key", "a"), ("Idempotency-Key", "a")],
        [("idempotency-key", "a"), ("x-idempotency-key", "")],
    ],
)
def test_alternatives_that_disagree_and_repeats_are_refused(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(KeyMalformed):
        read(*pairs)
