"""`Prefer: respond-async, wait=N` (RFC 7240): the caller asks for 202 Accepted instead of a long wait."""

from __future__ import annotations

import re
from collections.abc import Sequence

WAIT_S_MAX = 60
PREFER_MAX = 1024
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def respond_async(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """How many seconds the caller would wait before a 202, or None when it did not ask.

    Preferences that are not understood are ignored, as the RFC says.
    """
    given: dict[str, str] = {}
    for name, value in headers:
        if name.lower() == b"prefer" and len(value) <= PREFER_MAX:
            for preference in _unquote(value.decode("latin-1")).split(","):
                token, _, text = preference.partition(";")[0].partition("=")
                given.setdefault(token.strip().lower(), text.strip())  # of a repeated preference the first one counts
    if "respond-async" not in given:
        return None
    wait_s = given.get("wait", "")
    return min(int(wait_s), WAIT_S_MAX) if re.fullmatch("[0-9]{1,9}", wait_s) else 0


def _unquote(value: str) -> str:
    """The value without its quotes, and without separators, which mean nothing inside quotes."""
    return QUOTED.sub(lambda quoted: re.sub("[,;=]", " ", quoted[1]), value)
