"""What is published, as the bytes of a message and their content type."""

from __future__ import annotations

import msgspec

from semel.core.records import plain_text
from semel.errors import Unstorable

BYTES, TEXT, JSON = "application/octet-stream", "text/plain; charset=utf-8", "application/json"
_encoder = msgspec.json.Encoder(order="deterministic")
"""Of sets and dictionaries, too, a repeat in another process makes the same bytes. NaN and infinities are null."""


def payload_of(given: object) -> tuple[bytes, str]:
    """Bytes as they are, text in UTF-8, and any other data as JSON."""
    match given:
        case bytes() | bytearray() | memoryview():
            return bytes(given), BYTES
        case str():
            try:
                return plain_text("payload", given).encode(), TEXT
            except UnicodeEncodeError as error:
                raise ValueError(f"payload must be valid Unicode text: {error}") from None
        case _:
            return _json(given), JSON


def _json(given: object) -> bytes:
    try:
        return _encoder.encode(given)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unstorable(
            f"payload cannot be written as JSON ({error}): give bytes, text, or data of dictionaries, lists, numbers "
            "and texts"
        ) from error
