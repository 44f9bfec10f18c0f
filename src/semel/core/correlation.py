"""The request that an attempt belongs to, as its owner names it: `<128 random bits>.<label>`.

The label of a request with a `traceparent` is the trace id, followed by the caller's span id in a shorter spelling,
because a link between traces needs both. It fits into an owner: 20 random characters, a dot, 32 and 11 make 64.
"""

from __future__ import annotations

import base64
import re

TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
OWNER_LABEL = re.compile(r"[^0-9A-Za-z._-]")
LABEL_MAX = 40
TRACE_LABEL = re.compile(r"([0-9a-f]{32})([0-9A-Za-z_-]{11})")


def trace_label(traceparent: str) -> str | None:
    """The label that names this trace, or None when the header is not of W3C's form."""
    found = TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    return found[1] + base64.urlsafe_b64encode(bytes.fromhex(found[2])).decode().rstrip("=")


def request_label(traceparent: str | None, request_id: str) -> str:
    """The label of a request with these headers; empty when it has neither."""
    traced = None if traceparent is None else trace_label(traceparent)
    text = request_id if traceparent is None else traceparent
    return OWNER_LABEL.sub("_", text)[:LABEL_MAX] if traced is None else traced


def correlation_of(owner: str) -> str:
    """The correlation id in an owner: a trace id, a request id, or nothing."""
    label = owner.partition(".")[2]
    traced = TRACE_LABEL.fullmatch(label)
    return label if traced is None else traced[1]


def trace_of(owner: str) -> tuple[int, int] | None:
    """Trace id and span id of the request that an owner belongs to, if it came with both."""
    traced = TRACE_LABEL.fullmatch(owner.partition(".")[2])
    if traced is None:
        return None
    return int(traced[1], 16), int.from_bytes(base64.urlsafe_b64decode(traced[2] + "="), "big")
