"""HTTP answers as stored results: MessagePack of status, header pairs and body, under a versioned format name."""

from __future__ import annotations

import msgspec

from semel.core.http import Response
from semel.core.records import Result
from semel.errors import RecordUnreadable

FORMAT = "http.1"
TOMBSTONE = "http-not-kept.1"
"""The effect happened and stays protected; its answer was too large to keep."""

Stored = tuple[int, tuple[tuple[bytes, bytes], ...], bytes]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Stored)


def encode(response: Response, *, ok: bool) -> Result:
    return Result(FORMAT, _encoder.encode((response.status, response.headers, response.body)), ok=ok)


def tombstone(*, ok: bool) -> Result:
    return Result(TOMBSTONE, b"", ok=ok)


def decode(result: Result, *marks: tuple[bytes, bytes]) -> Response | None:
    """The stored answer, with `marks` as its last headers, or None for a tombstone."""
    if result.format == TOMBSTONE:
        return None
    if result.format != FORMAT:
        raise RecordUnreadable(
            f"the stored answer has format {result.format!r}, and this version of semel reads {FORMAT!r}"
        )
    try:
        status, headers, body = _decoder.decode(result.payload)
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(f"the stored answer is damaged: {error}") from error
    return Response(status, (*headers, *marks), body)
