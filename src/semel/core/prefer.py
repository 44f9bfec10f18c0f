"""`Prefer: respond-async, wait=N` (RFC 7240): one request asks to be accepted instead of being kept waiting."""

from __future__ import annotations

import re
from collections.abc import Sequence

WAIT_S_MAX = 60
PREFER_MAX = 1024
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def respond_async(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """How many seconds the caller would wait before a 202, or None when it did not ask.

    What is not understood is ignored, as the RFC says.
    """
    given: dict[str, str] = {}
    for name, value in headers:
        if name.lower() == b"prefer" and len(value) <= PREFER_MAX:
            for preference in _unquoted(value.decode("latin-1")).split(","):
                token, _, text = preference.partition(";")[0].partition("=")
                given.setdefault(token.strip().lower(), text.strip())  # of repeats the first one counts
    if "respond-async" not in given:
        return None
    wait_s = given.get("wait", "")
    return min(int(wait_s), WAIT_S_MAX) if re.fullmatch("[0-9]{1,9}", wait_s) else 0


def _unquoted(value: str) -> str:
    """Without quotes, and without what would separate something if it were not in quotes."""
    return QUOTED.sub(lambda quoted: re.sub("[,;=]", " ", quoted[1]), value)
