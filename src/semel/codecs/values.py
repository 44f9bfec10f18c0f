"""Values and errors of functions as stored results: MessagePack that says of every part what it is.

What comes back equals what was stored, and has the same types: None and other falsy values, decimals, dates with their
zones, tuples and sets. Classes are never imported by a stored name: only those that the return annotation (or
`final_errors`) reaches, and their loaded subclasses, are made again. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, assert_never, cast

from semel.codecs.annotations import classes_in
from semel.codecs.shapes import Adapter
from semel.codecs.tags import Known, Tagged
from semel.core.fingerprint import digest
from semel.core.records import Result
from semel.errors import RecordUnreadable

R = TypeVar("R")
FORMAT = "value.1"
ERROR = "error.1"
TOMBSTONE = "value-not-kept.1"
"""The effect happened and stays protected; what it ended with was not kept, and the payload says why."""


@dataclass(frozen=True, slots=True)
class Returned(Generic[R]):
    """The work returned this."""

    value: R


@dataclass(frozen=True, slots=True)
class Raised:
    """The work raised this, and that is its final answer."""

    error: Exception


@dataclass(frozen=True, slots=True)
class NotKept:
    """The work ended, and what it ended with was not kept."""

    reason: str


Outcome = Returned[R] | Raised | NotKept


class Values(Generic[R]):
    """The codec of one function: what `annotation` and `errors` reach can be stored.

    A type among them that cannot is `Unstorable` at once. `adapters` are the way out: a pair of functions for a class.
    """

    def __init__(
        self,
        annotation: object = Any,
        errors: Iterable[type[Exception]] = (),
        adapters: Mapping[type, Adapter] | None = None,
    ) -> None:
        adapters = adapters or {}
        self.errors = tuple(errors)
        self._values = Tagged(Known(classes_in(annotation, adapters), adapters))
        reached = {cls for error in self.errors for cls in classes_in(error, adapters)}
        self._errors = Tagged(Known(reached, adapters))
        self._canonical = Tagged(Known(None, adapters), ordered=True)

    def encode(self, outcome: Outcome[R]) -> Result:
        """The outcome as it is stored. What cannot be stored is `Unstorable`, and the message names it."""
        match outcome:
            case Returned(value):
                return Result(FORMAT, self._values.encode(value))
            case Raised(error):
                return Result(ERROR, self._errors.encode(error), ok=False)
            case NotKept(reason):
                return tombstone(reason, ok=True)
            case _:
                assert_never(outcome)

    def decode(self, result: Result) -> Outcome[R]:
        """The outcome as it was stored; a new object every time."""
        try:
            if result.format == FORMAT:
                return Returned(cast(R, self._values.decode(result.payload)))
            if result.format == ERROR:
                return Raised(cast(Exception, self._errors.decode(result.payload)))
            if result.format == TOMBSTONE:
                return NotKept(result.payload.decode())
        except Exception as error:  # of an adapter, too: it must not look as if the work had raised it
            raise RecordUnreadable(
                f"the stored result does not fit the function any more: {type(error).__name__}: {error}"
            ) from error
        raise RecordUnreadable(f"the stored result has format {result.format!r}, and a function's has {FORMAT!r}")

    def canonical(self, value: object) -> bytes:
        """Bytes that are equal exactly when the values are, types included: for fingerprints."""
        return self._canonical.encode(value)


def tombstone(reason: str, *, ok: bool) -> Result:
    return Result(TOMBSTONE, reason.encode(), ok=ok)


_canonical = Tagged(Known(None, {}), ordered=True)


def derived_key(*parts: object) -> str:
    """A key made of what makes the operation this one: `derived_key(user, amount, currency, reference)`.

    Equal parts of equal types give the same key, other parts another one: `1`, `"1"` and `1.0` differ, and so do
    `("ab", "c")` and `("a", "bc")`. Two operations that are meant to be two must differ in a part: without a reference
    of its own, the second purchase of the same thing is taken for a repeat of the first.
    """
    if not parts:
        raise ValueError("derived_key() needs parts: without them all operations are one")
    return digest([b"derived", _canonical.encode(parts)])
