"""Messages and deliveries: what every broker can carry, and what is refused."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from semel.core.messages import (
    HEADERS_MAX,
    HEADERS_SIZE_MAX,
    ID_MAX,
    KEY_MAX,
    PAYLOAD_MAX,
    TOPIC_MAX,
    Delivery,
    Message,
    check_received_id,
)


def message(**changed: Any) -> Message:
    return Message(**{"id": "m-1", "topic": "orders.shipped", "payload": b"{}", **changed})


class Topic(str, Enum):  # noqa: UP042, its f-string is the name of the member
    SHIPPED = "orders.shipped"


def test_a_message_within_the_limits_is_itself() -> None:
    largest = message(
        id="x" * ID_MAX,
        topic="t" * TOPIC_MAX,
        key="k" * KEY_MAX,
        payload=b"p" * PAYLOAD_MAX,
        headers={"trace": "v" * (HEADERS_SIZE_MAX - 5)},
    )
    assert largest.checked() == largest


def test_a_member_of_an_enum_is_its_text() -> None:
    checked = message(topic=Topic.SHIPPED, headers={"kind": Topic.SHIPPED}).checked()
    assert f"{checked.topic} {checked.headers['kind']}" == "orders.shipped orders.shipped"


def test_headers_cannot_be_changed_afterwards() -> None:
    given = {"trace": "1"}
    checked = message(headers=given).checked()
    given["trace"] = "2"
    assert checked.headers["trace"] == "1"
    with pytest.raises(TypeError):
        checked.headers["trace"] = "3"  # type: ignore[index]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"id": ""}, "id must not be empty"),
        ({"id": "a b"}, "id must be 1 to 128 visible ASCII characters"),
        ({"id": "é"}, "id must be 1 to 128 visible ASCII characters"),
        ({"id": "x" * (ID_MAX + 1)}, "id has 129 bytes in UTF-8, the limit is 128"),
        ({"topic": ""}, "topic must not be empty"),
        ({"topic": "a\nb"}, "topic must be printable text in one line"),
        ({"topic": "x" * (TOPIC_MAX + 1)}, "topic has 256 bytes"),
        ({"key": ""}, "key must not be empty"),
        ({"key": "x" * (KEY_MAX + 1)}, "key has 256 bytes"),
        ({"content_type": "text/plain\r\nX: 1"}, "content_type must be printable"),
        ({"payload": b"x" * (PAYLOAD_MAX + 1)}, "payload has 1048577 bytes, the limit is 1048576: keep the data"),
        ({"headers": {"a b": "1"}}, "'a b' is not a header name"),
        ({"headers": {"a": "1\r\nb: 2"}}, "the value of 'a' must be printable"),
        ({"headers": {f"h{n}": "" for n in range(HEADERS_MAX + 1)}}, "headers has 65 entries, the limit is 64"),
        ({"headers": {"a": "é" * (HEADERS_SIZE_MAX // 2)}}, "headers has 16385 bytes, the limit is 16384"),
    ],
)
def test_what_a_broker_could_not_carry_is_refused(changed: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        message(**changed).checked()


def test_headers_are_text() -> None:
    with pytest.raises(TypeError, match="the header 'a' must be text, not int"):
        message(headers={"a": 1}).checked()
    with pytest.raises(TypeError, match="the name of a header must be text, not int"):
        message(headers={1: "a"}).checked()


def test_a_delivery_needs_no_more_than_a_payload() -> None:
    assert Delivery(b"x") == Delivery(b"x", None, "", "", {}, None)


def test_a_received_id_fits_into_a_key() -> None:
    assert check_received_id("any text of 255 bytes, ü") == "any text of 255 bytes, ü"
    for unfit in ("", "x" * 256, "a\0"):
        with pytest.raises(ValueError, match=r"^message_id .*Take a digest"):
            check_received_id(unfit)


def test_headers_are_a_mapping() -> None:
    with pytest.raises(TypeError, match="headers must be a mapping of names to texts, not list"):
        Message("m", "t", b"", headers=[("a", "b")]).checked()  # type: ignore[arg-type]
