"""The id of a message: the broker's own, or one from a header, from the payload, or from a function of yours.

A message without an id becomes a dead letter. An id is never invented: a redelivery would get another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from semel.core.messages import Delivery, check_line
from semel.core.records import NAME_MAX

FindId = Callable[[Delivery], str | None]
MessageId = Literal["property"] | FindId
OWN_HEADER = "semel-id"
"""The header in which semel's publishers send the id, beside the broker's own property."""


def header(name: str) -> FindId:
    """The id is the value of this header; capital and small letters are the same."""
    if not name:
        raise ValueError("header() needs the name of a header")
    lowered = name.lower()

    def find_header(delivery: Delivery) -> str | None:
        if (exact := delivery.headers.get(name)) is not None:
            return exact
        return next((value for given, value in delivery.headers.items() if given.lower() == lowered), None)

    return find_header


def field(pointer: str) -> FindId:
    """The id is in the payload, which is JSON, at this JSON pointer (RFC 6901), as in `field("/order/id")`.

    Text and whole numbers are ids; anything else is no id.
    """
    if not pointer.startswith("/"):
        raise ValueError(f"field({pointer!r}): a JSON pointer begins with '/', as in field('/order/id')")
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]

    def find_field(delivery: Delivery) -> str | None:
        try:
            at: object = msgspec.json.decode(delivery.payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        for part in parts:
            match at:
                case dict() if part in at:
                    at = at[part]
                case list() if part.isdecimal() and int(part) < len(at):
                    at = at[int(part)]
                case _:
                    return None
        if isinstance(at, bool) or not isinstance(at, str | int):
            return None
        return str(at)

    return find_field


def own_id(delivery: Delivery) -> str | None:
    """The broker's own id, else the one that semel's publishers send."""
    return delivery.id or _own_header(delivery)


_own_header = header(OWN_HEADER)


def find_by(chosen: MessageId) -> FindId:
    """The function that finds ids as `id=` says."""
    if chosen == "property":
        return own_id
    if not callable(chosen):  # pyright: ignore[reportUnnecessaryComparison]
        raise TypeError(
            f'id= must be "property" (the default), header("name"), field("/path"), or a function that takes a '
            f"Delivery and returns the id, not {chosen!r}"
        )
    return chosen


def read_id(find: FindId, delivery: Delivery) -> tuple[str | None, str]:
    """The id of a delivery; else None, and why there is none that can be used."""
    try:
        found = find(delivery)
    except Exception as error:
        return None, f"the function that finds the message id failed: {error!r}"
    if found is None or found == "":
        return None, "it has no message id"
    try:
        return check_line("the message id", found, NAME_MAX), ""
    except (TypeError, ValueError) as error:
        return None, str(error)
