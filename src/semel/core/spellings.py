"""Other spellings of a path that some router takes for the same path. Rules look at all of them.

Widely used programs ignore these differences. Werkzeug and Litestar ignore a slash at the end, Express and ASP.NET the
case, nginx repeated slashes, Java servers `;parameters`. Rails and REST framework ignore `.json`, Windows backslashes,
and file servers dot segments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from urllib.parse import unquote

ODD = re.compile(r"[;\\\x00]|//|/\.|\.[0-9A-Za-z]*/?$|\s$", re.ASCII)
"""Whether a path has a second spelling at all, apart from its case and the slash at its end."""
PARAMETERS = re.compile(r";[^/\\]*")
SUFFIX = re.compile(r"(?<=[^/.])\.[0-9A-Za-z]*(?=/?$)")
ENCODED_SLASH = re.compile("%2f", re.IGNORECASE)
NO_SLASH = "%EF%BF%BC"
"""Stands for an encoded slash that a router takes for a character of a segment."""
COMBINED_MAX = 1_024
"""Of a longer path only two spellings count: as it is, and with all differences removed; not every combination."""


def spellings(path: str) -> tuple[str, ...]:
    """The path, then every path that a router may take it for. A plain path has no other spelling."""
    if ODD.search(path) is None:
        return (path,)
    if len(path) > COMBINED_MAX:
        forgiven = path
        for forgive in FORGIVEN:
            forgiven = forgive(forgiven)
        return (path, forgiven)
    found = {path: None}
    for forgive in FORGIVEN:
        found |= dict.fromkeys(map(forgive, tuple(found)))
    return tuple(found)


def decodings(path: str, raw: str) -> tuple[str, ...]:
    """How programs may decode a path: `path`, which is decoded once, then the other readings.

    An encoded slash may be data. A program may decode twice, or not at all.
    """
    if "%" not in raw:
        return (path,)
    kept = unquote(ENCODED_SLASH.sub(NO_SLASH, raw))
    return tuple(dict.fromkeys((path, kept, unquote(path), raw)))


def _trim(path: str) -> str:
    """Some programs end a text at a NUL, and drop spaces at its end."""
    return path.partition("\0")[0].rstrip()


def _turn_backslashes(path: str) -> str:
    return path.replace("\\", "/")


def _drop_parameters(path: str) -> str:
    return PARAMETERS.sub("", path)


def _merge_slashes(path: str) -> str:
    return re.sub("//+", "/", path)


def _resolve_dots(path: str) -> str:
    """RFC 3986, section 5.2.4."""
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            if len(kept) > 1:
                kept.pop()
        elif segment != ".":
            kept.append(segment)
    return "/".join(kept) + ("/" if segments[-1] in (".", "..") else "")


def _drop_suffix(path: str) -> str:
    return SUFFIX.sub("", path)


FORGIVEN: Iterable[Callable[[str], str]] = (
    _trim,
    _turn_backslashes,
    _drop_parameters,
    _merge_slashes,
    _resolve_dots,
    _drop_suffix,
)
