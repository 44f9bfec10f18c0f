"""The headers of a message as they stand in a row: JSON, the same text for the same headers in any order."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(dict[str, str])


def headers_text(headers: Mapping[str, str]) -> str:
    return _encoder.encode(dict(headers)).decode()


def headers_from(text: str) -> Mapping[str, str]:
    return _decoder.decode(text)
