"""Bodies: another one of the same shape, and where two answers differ."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from semel.probe.wire import ProbeRequest

IDENTIFIES = re.compile(r"(^|_|-)(id|uuid|guid|number|no|ref|reference)$|[a-z]Id$", re.IGNORECASE)
SECRET = re.compile(r"token|secret|password|passwd|auth|key|card|iban|ssn|cookie|session", re.IGNORECASE)
SHOWN_MAX = 24


def change_request(request: ProbeRequest, given: bytes | None) -> ProbeRequest:
    """The request with another body: the one that was given, or the own one with one value changed."""
    if given is not None:
        return replace(request, body=given)
    if not request.body:
        joint = "&" if urlsplit(request.url).query else "?"
        return replace(request, url=f"{request.url}{joint}semel-try=other")
    try:
        document = json.loads(request.body)
    except ValueError:
        return replace(request, body=request.body + b" ")
    return replace(request, body=json.dumps(_changed(document)).encode())


def _changed(value: Any) -> Any:
    """The value with its first number, else its first text, changed: what still has its shape is likely accepted."""
    for wanted in (int, str):
        new, done = _changed_first(value, wanted)
        if done:
            return new
    return [value, "semel-try"]


def _changed_first(value: Any, wanted: type[int | str]) -> tuple[Any, bool]:
    if type(value) is wanted:
        return f"{value}x" if isinstance(value, str) else value + 1, True
    members = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for name, member in members:
        new, done = _changed_first(member, wanted)
        if done:
            copy = value.copy()
            copy[name] = new
            return copy, True
    return value, False


class Difference:
    """Where two answers differ, if both are JSON."""

    def __init__(self, one: bytes, other: bytes) -> None:
        try:
            found = list(_differences(json.loads(one), json.loads(other), ""))
            self.json = True
        except ValueError:
            found, self.json = [], False
        self.only_bytes = self.json and not found and one != other
        self.identifies = any(IDENTIFIES.search(pointer.rpartition("/")[2]) for pointer, _, _ in found)
        self._found = found

    def __str__(self) -> str:
        shown = [
            f"{pointer or '/'} {_shown(pointer, one)} ≠ {_shown(pointer, other)}" for pointer, one, other in self._found
        ]
        return ", ".join(shown[:2]) + (f" and {len(shown) - 2} more" if len(shown) > 2 else "")


def _differences(one: Any, other: Any, pointer: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            yield from _differences(one.get(name), other.get(name), f"{pointer}/{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences(*pair, f"{pointer}/{at}")
    elif one != other:
        yield pointer, one, other


def _shown(pointer: str, value: Any) -> str:
    """A value in an answer may be a secret: show only short plain values with a harmless name."""
    text = json.dumps(value)
    if SECRET.search(pointer) or isinstance(value, dict | list) or len(text) > SHOWN_MAX:
        return "…"
    return text
