"""Checks what a caller gives to a journal and to the adapters. Each error names the argument and what to write."""

from __future__ import annotations

from typing import TypeVar

from semel.core.records import DURATION_MS_MAX

T = TypeVar("T")
SECONDS_MIN = 0.001


def check_kind(given: object, kind: type[T], argument: str, example: str) -> T:
    """Refuse a value of another class when it is given, and not when the first request is sent."""
    if not isinstance(given, kind):
        raise TypeError(f"{argument} must be {example}, not {describe(given)}")
    return given


def check_sender(given: object, method: str, argument: str, example: str) -> None:
    """Refuse what does not send requests: a client, or a transport of the other colour."""
    if not callable(getattr(given, method, None)):
        raise TypeError(f"{argument} must be {example}, not {describe(given)}")


def read_seconds(given: object, argument: str, most: float = DURATION_MS_MAX / 1_000) -> int:
    """A number of seconds, in milliseconds."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{argument} must be a number of seconds, not {describe(given)}")
    if not SECONDS_MIN <= given <= most:
        raise ValueError(f"{argument} must be between {SECONDS_MIN} and {most:g} seconds, not {given!r}")
    return int(1_000 * given)


def describe(given: object) -> str:
    """A value as an error shows it: text in full, of anything else only what it is."""
    return repr(given) if isinstance(given, str) else "None" if given is None else type(given).__name__
