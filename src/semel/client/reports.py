"""`report_of(response)`: what semel knows of a call whose response, or error, the library has given back."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from msgspec import Struct

from semel.core.retries import AttemptEnd, RepeatLimit
from semel.errors import Misuse


class CallReport(Struct, frozen=True):
    """What `report_of(response)` tells about a call."""

    key: str
    attempts: int
    """How many requests this call has sent; 0 if the answer comes from the journal."""
    replayed: bool
    """Whether this is the stored answer to an earlier attempt."""
    end: AttemptEnd
    """How the last attempt ended."""
    unkept: str = ""
    """Why the journal could not keep the answer. The intent is still open then."""
    limit: RepeatLimit | None = None
    """Why it was not sent again, although another attempt might have got an answer. An intent is still open then."""


reports: WeakKeyDictionary[object, CallReport] = WeakKeyDictionary()


def report_of(response: object) -> CallReport:
    """What the call of a response was: its key, how many requests it took, and whether the answer is a stored one.

    It also takes an error of the library, when a call has ended without an answer.
    """
    try:
        return reports[response]
    except (KeyError, TypeError):
        raise Misuse(f"no adapter of semel.client has given this {type(response).__name__}") from None
