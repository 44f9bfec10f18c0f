"""HTTP answers as stored results: MessagePack of status, header pairs and body, under a versioned format name.

An answer with a reason phrase of its own has a format of its own, so that all other answers keep their format.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from semel.core.http import Response
from semel.core.records import Result
from semel.errors import RecordUnreadable

FORMAT = "http.1"
WITH_REASON = "http-reason.1"
TOMBSTONE = "http-not-kept.1"
"""The effect stays protected; its answer was too large to keep."""


class AnswerNotKept(Enum):
    """What a tombstone, which stands for an answer that was not kept, knows about the work."""

    ENDED = b""
    ANSWERING = b"answering"
    """The work was still answering when this was stored. How it ended is not recorded."""


Stored = tuple[int, tuple[tuple[bytes, bytes], ...], bytes]
StoredWithReason = tuple[int, tuple[tuple[bytes, bytes], ...], bytes, bytes]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Stored)
_reason_decoder = msgspec.msgpack.Decoder(StoredWithReason)


def encode(response: Response, *, ok: bool) -> Result:
    if response.reason is not None:
        parts = (response.status, response.headers, response.body, response.reason)
        return Result(WITH_REASON, _encoder.encode(parts), ok=ok)
    return Result(FORMAT, _encoder.encode((response.status, response.headers, response.body)), ok=ok)


def tombstone(known: AnswerNotKept = AnswerNotKept.ENDED, *, ok: bool) -> Result:
    return Result(TOMBSTONE, known.value, ok=ok)


def decode(result: Result, *marks: tuple[bytes, bytes]) -> Response | AnswerNotKept:
    """The stored answer, with `marks` as its last headers, or what its tombstone knows."""
    if result.format == TOMBSTONE:
        return AnswerNotKept.ANSWERING if result.payload == AnswerNotKept.ANSWERING.value else AnswerNotKept.ENDED
    reason = None
    try:
        if result.format == FORMAT:
            status, headers, body = _decoder.decode(result.payload)
        elif result.format == WITH_REASON:
            status, headers, body, reason = _reason_decoder.decode(result.payload)
        else:
            raise RecordUnreadable(
                f"the stored answer has format {result.format!r}, and this version of semel reads "
                f"{FORMAT!r} and {WITH_REASON!r}"
            )
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(f"the stored answer is damaged: {error}") from error
    return Response(status, (*headers, *marks), body, reason)
