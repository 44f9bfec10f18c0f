"""What makes a request *this* request."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec.structs import replace

from semel.core.fingerprint import (
    Fingerprint,
    RequestParts,
    digest,
    fingerprint,
    function_digest,
    of_function,
    of_request,
    raw,
)

REQUEST = RequestParts("POST", "/payments", "a=1", ((b"x-api", b"2"), (b"accept", b"text"), (b"x-api", b"3")), b"body")
RAW, JSON = Fingerprint(), Fingerprint(body="json")


def exact(body: bytes, spec: Fingerprint) -> bytes | None:
    """Stands for RFC 8785: knows one document in two spellings."""
    return b"{}" if body in (b"{}", b"{ }") else None


def of(request: RequestParts, spec: Fingerprint = RAW, secret: bytes | None = None) -> str:
    return fingerprint(request, spec, canonicalise=exact, secret=secret)


def test_the_form_is_a_version_and_a_digest() -> None:
    version, _, rest = of(REQUEST).partition(".")
    assert version == "1"
    assert len(rest) == 43, "256 bits, base64url without padding"


@pytest.mark.parametrize("secret", [None, b"secret"])
def test_raw_is_what_the_default_is(secret: bytes | None) -> None:
    for request in (REQUEST, replace(REQUEST, query="", body=b""), replace(REQUEST, path="/é")):
        assert raw(request, secret) == of(request, RAW, secret)


def test_the_same_request_has_the_same_fingerprint_in_every_release() -> None:
    assert of(REQUEST) == "1.63GuP5vmnk7YZUPi6-AumkuusmCl2nj2sNnAlxnLCNI"


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, method="PUT"),
        replace(REQUEST, path="/payments/"),
        replace(REQUEST, query="a=2"),
        replace(REQUEST, body=b"Body"),
        replace(REQUEST, body=b""),
        replace(REQUEST, path="/paymentsa=1", query=""),
        replace(REQUEST, method="POST/", path="payments"),
    ],
)
def test_method_path_query_and_body_count(other: RequestParts) -> None:
    assert of(other) != of(REQUEST)


def test_headers_do_not_count_unless_chosen() -> None:
    bare = replace(REQUEST, headers=())
    assert of(bare) == of(REQUEST)
    assert of(bare, Fingerprint(headers=("X-Api",))) != of(REQUEST, Fingerprint(headers=("X-Api",)))


@pytest.mark.parametrize(
    "headers",
    [
        ((b"x-api", b"3"), (b"x-api", b"2")),
        ((b"x-api", b"2"),),
        ((b"x-api", b"23"),),
        ((b"x-api", b"2"), (b"x-api", b"3"), (b"x-api", b"")),
    ],
)
def test_values_order_and_repeats_of_a_chosen_header_count(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    spec = Fingerprint(headers=("x-api",))
    assert of(replace(REQUEST, headers=headers), spec) != of(REQUEST, spec)


def test_header_names_have_no_case() -> None:
    upper = replace(REQUEST, headers=((b"X-API", b"2"), (b"X-Api", b"3")))
    assert of(upper, Fingerprint(headers=("x-Api",))) == of(REQUEST, Fingerprint(headers=("X-api",)))


def test_a_value_cannot_imitate_the_next_header() -> None:
    spec = Fingerprint(headers=("a", "b"))
    one = replace(REQUEST, headers=((b"a", b"b"), (b"b", b"")))
    two = replace(REQUEST, headers=((b"a", b""), (b"b", b"b")))
    assert of(one, spec) != of(two, spec)


def test_query_and_body_may_be_left_out() -> None:
    assert of(replace(REQUEST, query="a=2"), Fingerprint(query=False)) == of(REQUEST, Fingerprint(query=False))
    assert of(replace(REQUEST, body=b"x"), Fingerprint(body=None)) == of(REQUEST, Fingerprint(body=None))
    assert of(replace(REQUEST, body=b""), RAW) != of(replace(REQUEST, body=b""), Fingerprint(body=None))


def test_json_bodies_are_compared_in_their_exact_form() -> None:
    assert of(replace(REQUEST, body=b"{ }"), JSON) == of(replace(REQUEST, body=b"{}"), JSON)
    assert of(replace(REQUEST, body=b"{ }"), RAW) != of(replace(REQUEST, body=b"{}"), RAW)


def test_a_body_without_an_exact_form_counts_as_its_bytes_and_never_equals_one_that_has() -> None:
    assert of(replace(REQUEST, body=b"{"), JSON) == of(replace(REQUEST, body=b"{"), RAW)
    assert of(replace(REQUEST, body=b"[ ]"), JSON) != of(replace(REQUEST, body=b"[]"), JSON)
    canonical, raw = replace(REQUEST, body=b"{ }"), replace(REQUEST, body=b"{}")
    assert of(canonical, JSON) != of(raw, RAW), "the same bytes, once as a canonical form and once as they came"


def test_the_hook_sees_the_chosen_members() -> None:
    seen: list[tuple[bytes, Fingerprint]] = []

    def canonicalise(body: bytes, spec: Fingerprint) -> bytes | None:
        seen.append((body, spec))
        return b"canonical"

    spec = Fingerprint(body="json", include=("/amount",), exclude=("/amount/note", ""))
    fingerprint(REQUEST, spec, canonicalise=canonicalise)
    assert seen == [(b"body", spec)]
    fingerprint(REQUEST, RAW, canonicalise=canonicalise)
    assert len(seen) == 1, "raw bodies are not parsed"


def test_a_secret_keys_the_digest() -> None:
    assert len({of(REQUEST), of(REQUEST, secret=b"one"), of(REQUEST, secret=b"two")}) == 3


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_no_list_of_parts_imitates_another(some: list[bytes], others: list[bytes]) -> None:
    assert (digest(some) == digest(others)) is (some == others)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"body": "xml"}, "Fingerprint.body must be 'raw', 'json' or None, not 'xml'"),
    ({"headers": "x-api"}, "Fingerprint.headers must be several texts, not one: write"),
    ({"body": "json", "include": "/a"}, "Fingerprint.include must be several texts, not one: write"),
    ({"body": "json", "exclude": ["a"]}, "'a' is not a JSON pointer"),
    ({"include": ("/a",)}, "they need body='json'"),
    ({"body": None, "exclude": ("/a",)}, "they need body='json'"),
]


@pytest.mark.parametrize(("given", "complaint"), BAD)
def test_a_choice_that_makes_no_sense_is_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        Fingerprint(**given)
    assert complaint in str(caught.value)


def test_any_iterable_will_do() -> None:
    headers: Any = ["a", "b"]
    assert Fingerprint(headers=headers) == Fingerprint(headers=("a", "b"))


def test_a_fingerprint_tells_whether_it_is_of_a_request_or_of_a_function() -> None:
    """So that an operator stores nothing for a key that its own code cannot read."""
    request = raw(RequestParts("POST", "/pay", "", (), b"{}"))
    assert (of_request(request), of_function(request)) == (True, False)
    call = function_digest([b"function", b"1"])
    assert (of_request(call), of_function(call)) == (False, True)
    assert call.endswith(digest([b"function", b"1"])), "the digest itself is the same"
