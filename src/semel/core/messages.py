"""A message on its way out, and a delivery on its way in: values, checked against limits that every broker has room
for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from semel.core.records import NAME_MAX, check_text, plain_text

ID_MAX = 128
"""Of visible ASCII: what the strictest broker (SQS) takes as a deduplication id."""
TOPIC_MAX = 255
KEY_MAX = 255
PAYLOAD_MAX = 1024 * 1024
HEADERS_MAX = 64
HEADERS_SIZE_MAX = 16 * 1024
CONTENT_TYPE_MAX = 255
VISIBLE = re.compile(r"[\x21-\x7e]+")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Message(Struct, frozen=True):
    """One message of an outbox. It has the same `id` however often it is published."""

    id: str
    topic: str
    payload: bytes
    content_type: str = "application/octet-stream"
    key: str | None = None
    """The ordering key: messages of one key are published in the order in which they were added."""
    headers: Mapping[str, str] = NO_HEADERS
    attempt: int = 1
    """How often it was tried to publish it, this time included."""

    def checked(self) -> Message:
        """Itself, if every broker can carry it; the error names the field and its limit."""
        check_id("id", self.id)
        topic = check_line("topic", self.topic, TOPIC_MAX)
        key = None if self.key is None else check_line("key", self.key, KEY_MAX)
        content_type = check_line("content_type", self.content_type, CONTENT_TYPE_MAX)
        if len(self.payload) > PAYLOAD_MAX:
            raise ValueError(
                f"payload has {len(self.payload)} bytes, the limit is {PAYLOAD_MAX}: keep the data elsewhere, and "
                "publish where it is"
            )
        return replace(self, topic=topic, key=key, content_type=content_type, headers=check_headers(self.headers))


class Delivery(Struct, frozen=True):
    """One message as a broker delivered it, for the function that handles it."""

    payload: bytes
    id: str | None = None
    """The id that the broker's own property or header names, if it names one."""
    topic: str = ""
    content_type: str = ""
    headers: Mapping[str, str] = NO_HEADERS
    raw: object = None
    """The broker client's own message object."""


def check_id(field: str, value: str) -> str:
    """Refuse a message id that some broker could not carry unchanged."""
    value = check_text(field, value, ID_MAX)
    if not VISIBLE.fullmatch(value):
        raise ValueError(f"{field} must be 1 to {ID_MAX} visible ASCII characters without blanks, not {value!r}")
    return value


def check_received_id(value: str) -> str:
    """Refuse a message id that cannot be the name of a key. Ids of other senders may be longer than ours."""
    try:
        return check_text("message_id", value, NAME_MAX)
    except ValueError as error:
        raise ValueError(f"{error}. Take a digest of it, for instance hashlib.sha256(…).hexdigest()") from None


def check_line(field: str, value: str, size_max: int) -> str:
    """Refuse text that does not fit into one line of a protocol."""
    value = check_text(field, value, size_max)
    if not value.isprintable():
        raise ValueError(f"{field} must be printable text in one line, not {value!r}")
    return value


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers as a read-only mapping; refuses what a broker would change or drop."""
    if not isinstance(headers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"headers must be a mapping of names to texts, not {type(headers).__name__}")
    if len(headers) > HEADERS_MAX:
        raise ValueError(f"headers has {len(headers)} entries, the limit is {HEADERS_MAX}")
    checked = {
        plain_text("the name of a header", name): plain_text(f"the header {name!r}", value)
        for name, value in headers.items()
    }
    for name, value in checked.items():
        if not HEADER_NAME.fullmatch(name):
            raise ValueError(f"headers: {name!r} is not a header name: use letters, digits and hyphens")
        if not value.isprintable():
            raise ValueError(f"headers: the value of {name!r} must be printable text in one line, not {value!r}")
    size = sum(len(name) + len(value.encode()) for name, value in checked.items())
    if size > HEADERS_SIZE_MAX:
        raise ValueError(f"headers has {size} bytes, the limit is {HEADERS_SIZE_MAX}")
    return MappingProxyType(checked)
