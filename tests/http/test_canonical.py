"""Bodies compared as JSON: RFC 8785 where there is an exact form, and None (raw bytes) where there is none."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel import Fingerprint, StoreMisconfigured
from semel.codecs.canonical import canonical_json

JSON = Fingerprint(body="json")


def canonical(text: str | bytes, **chosen: Any) -> bytes | None:
    body = text if isinstance(text, bytes) else text.encode()
    return canonical_json(body, Fingerprint(body="json", **chosen))


def test_the_example_of_rfc_8785() -> None:
    text = r'{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],'
    text += r'"string":"\u20ac$\u000F\u000aA\u0027\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}'
    # The RFC's first number is more exact than a double: here that is no exact form.
    assert canonical(text) is None
    assert canonical(text.replace("333333333.33333329", "333333333.3333333")) == (
        b'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        b'"string":"\xe2\x82\xac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_members_are_sorted_by_utf_16_code_units() -> None:
    text = r'{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}'
    found = canonical(text)
    assert found is not None
    assert list(json.loads(found).values()) == [2, 4, 6, 7, 1, 5, 3]


@pytest.mark.parametrize(
    "texts",
    [
        ["1", "1.0", "1e0", "10e-1", " 1 ", "1.000"],
        ["0", "-0", "0.0", "-0.0", "0e5"],
        ['{"a":1,"b":[1,2]}', '{ "b" : [1.0, 2], "a" : 1 }'],
        ['"é"', r'"\u00e9"', r'"\u00E9"'],
        ["1e23", "1E+23", "100000000000000000000000.0"],
    ],
)
def test_the_same_value_has_one_form(texts: list[str]) -> None:
    forms = {canonical(text) for text in texts}
    assert len(forms) == 1
    assert None not in forms


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nope", b"{'a':1}", b"\xef\xbb\xbf{}", b'"\xff"', b'{"a":1}{"b":2}', b"01", b"+1", b".5",
        b'{"a":1,"a":2}', b'{"x":{"a":1,"a":1}}', b"NaN", b"[Infinity]", b"-Infinity",
        b"9007199254740992", b"-9007199254740992", b"123456789012345678901234567890", b"9" * 5000,
        b"0.1000000000000000055511151231257827", b"1e400", b"-1e400", b"1e-400", b"1e99999999999999999999",
        b"1e-99999999999999999999",
        b'"\\ud800"', b'{"\\udc00":1}', b"[" * 66 + b"]" * 66, b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000,
    ],
)  # fmt: skip
def test_what_has_no_exact_form(body: bytes) -> None:
    assert canonical(body) is None


def test_nesting_up_to_the_limit() -> None:
    assert canonical("[" * 65 + "]" * 65) == b"[" * 65 + b"]" * 65


@pytest.mark.parametrize(
    "text", ["9007199254740991", "-9007199254740991", "5e-324", "1.7976931348623157e308", "0.1", "1e21"]
)
def test_the_edges_of_a_double(text: str) -> None:
    found = canonical(text)
    assert found is not None
    assert float(found) == float(text)


def test_excluded_members_do_not_count() -> None:
    one, other = '{"a":1,"sent":{"at":1,"by":"x"},"t/~":1}', '{"a":1,"sent":{"at":2,"by":"x"},"t/~":2}'
    assert (
        canonical(one, exclude=("/sent/at", "/t~1~0"))
        == canonical(other, exclude=("/sent/at", "/t~1~0"))
        == b'{"a":1,"sent":{"by":"x"}}'
    )
    assert canonical(one, exclude=("/missing", "/a/b", "/sent/at/deep")) == canonical(one)


def test_included_members_alone_count() -> None:
    one, other = '{"amount":1,"noise":1,"to":["a","b"]}', '{"amount":1.0,"noise":2,"to":["a","c"]}'
    assert canonical(one, include=("/amount", "/to/0")) == canonical(other, include=("/to/0", "/amount"))
    assert canonical(one, include=("/to/1",)) != canonical(other, include=("/to/1",))
    assert canonical(one, include=("",)) != canonical(other, include=("",))


@pytest.mark.parametrize("pointer", ["/to/9", "/to/x", "/missing", "/amount/x"])
def test_a_missing_member_is_not_null(pointer: str) -> None:
    assert canonical('{"amount":1,"to":["a"]}', include=(pointer,)) == canonical("{}", include=(pointer,))
    assert canonical('{"missing":null}', include=("/missing",)) != canonical("{}", include=("/missing",))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_layout_never_matters_and_the_form_is_stable(value: Any) -> None:
    compact = canonical(json.dumps(value, separators=(",", ":")))
    assert compact == canonical(json.dumps(value, indent=2, ensure_ascii=False))
    assert compact is not None
    assert canonical(compact) in (
        compact,
        None,
    )  # None: a double above 2**53 is written like an integer that is not exact


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rfc8785", None)
    with pytest.raises(StoreMisconfigured, match=r"semel\[json\]"):
        canonical("{}")
