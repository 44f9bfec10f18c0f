"""Where the id of a message is found, and what is no id."""

from __future__ import annotations

from typing import Any

import pytest

from semel.inbox import Delivery, field, header
from semel.inbox.ids import find_by, own_id, read_id


@pytest.mark.parametrize(
    ("pointer", "payload", "found"),
    [
        ("/id", b'{"id": "m-1"}', "m-1"),
        ("/id", b'{"id": 42}', "42"),
        ("/id", b'{"id": 12345678901234567890123}', "12345678901234567890123"),
        ("/order/id", b'{"order": {"id": "m-1"}}', "m-1"),
        ("/events/1/id", b'{"events": [{}, {"id": "m-1"}]}', "m-1"),
        ("/a~1b/c~0d", b'{"a/b": {"c~d": "m-1"}}', "m-1"),
        ("/id", b'{"id": true}', None),
        ("/id", b'{"id": 1.5}', None),
        ("/id", b'{"id": null}', None),
        ("/id", b'{"id": {}}', None),
        ("/id", b"{}", None),
        ("/id", b"[]", None),
        ("/2", b'["m-1"]', None),
        ("/-1", b'["m-1"]', None),
        ("/id/x", b'{"id": "m-1"}', None),
        ("/id", b"not JSON", None),
        ("/id", b"\xff\xfe", None),
        ("/id", b"", None),
        ("/id", b"[" * 100_000, None),
    ],
)
def test_a_field_of_the_payload(pointer: str, payload: bytes, found: str | None) -> None:
    assert field(pointer)(Delivery(payload)) == found


def test_a_header_is_found_in_any_case() -> None:
    delivery = Delivery(b"", headers={"X-Event-Id": "m-1"})
    assert [header(name)(delivery) for name in ("X-Event-Id", "x-event-id", "X-EVENT-ID", "other")] == ["m-1"] * 3 + [
        None
    ]


def test_by_default_it_is_the_broker_s_own_or_the_one_that_publishers_of_semel_send() -> None:
    headers = {"Semel-Id": "m-2"}
    assert own_id(Delivery(b"", id="m-1", headers=headers)) == "m-1"
    assert own_id(Delivery(b"", headers=headers)) == "m-2"
    assert own_id(Delivery(b"")) is None
    assert find_by("property") is own_id


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "it has no message id"),
        ("", "it has no message id"),
        ("x" * 256, "the message id has 256 bytes"),
        ("a\tb", "one line"),
        (7, "must be text"),
    ],
)
def test_what_cannot_be_an_id_says_why(found: Any, why: str) -> None:
    id, problem = read_id(lambda delivery: found, Delivery(b""))
    assert id is None
    assert why in problem


def test_a_function_that_fails_says_so() -> None:
    def fail(delivery: Delivery) -> str:
        raise KeyError("id")

    assert read_id(fail, Delivery(b"")) == (None, "the function that finds the message id failed: KeyError('id')")


def test_mistakes_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="begins with '/'"):
        field("order.id")
    with pytest.raises(ValueError, match="needs the name of a header"):
        header("")
