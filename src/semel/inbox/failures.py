"""What a failure means for a delivery, by where it was raised: while opening, handling, closing or committing."""

from __future__ import annotations

from collections.abc import Iterator

from semel.core.attempts import kept_error
from semel.core.consumer import Tried
from semel.core.decisions import Left, NotStored, Released, Settlement, Stored, Superseded
from semel.core.records import Member
from semel.core.verdicts import Handling
from semel.errors import (
    InProgress,
    KeyExpired,
    KeyReused,
    NotExecuted,
    OutcomeUnknown,
    RecordUnreadable,
    ResultNotKept,
    StoreError,
)
from semel.errors import Superseded as SupersededError
from semel.stores.sql.errors import is_connection_lost, is_refused_for_good, retry_of

CONTEXTS_MAX = 10
ErrorTypes = tuple[type[Exception], ...]


class HandlingStage(Member):
    """How far the handling of a delivery has come."""

    OPENING = "the transaction begins, or the key is claimed"
    HANDLING = "the handler runs"
    CLOSING = "the record is written"
    COMMITTING = "the transaction commits"


class Progress:
    """Where a try is, for the code that judges its failure."""

    __slots__ = ("failed", "stage")

    def __init__(self) -> None:
        self.stage = HandlingStage.OPENING
        self.failed: Exception | None = None
        """What the handler itself raised."""


def reason_of(error: BaseException) -> str:
    """The error in one printable line, as a broker can carry it in a header."""
    said = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")
    return kept_error("".join(letter if letter.isprintable() else "?" for letter in said))


def judge_transaction(stage: HandlingStage, error: Exception, final_errors: ErrorTypes) -> Tried:
    """A try in a transaction that was rolled back, or whose COMMIT was not answered."""
    reason = reason_of(error)
    if stage is not HandlingStage.OPENING and isinstance(error, NotExecuted):
        return Tried(Handling.NOTHING_DONE, reason)
    if retry_of(error) is not None:
        return Tried(Handling.UNCOMMITTED, reason, again=True)
    match stage:
        case HandlingStage.OPENING:
            return judge_refusal(error, final_errors)
        case HandlingStage.HANDLING if isinstance(error, final_errors):
            return Tried(Handling.FINAL, reason)
        case HandlingStage.COMMITTING if not is_refused_for_good(error):
            return Tried(Handling.UNCOMMITTED, reason, again=True)  # the record tells whether it did commit
        case _:
            # A handler that loses its connection each time is at fault itself, and is counted in the end.
            return Tried(Handling.RAISED, reason, again=any(map(is_connection_lost, _with_contexts(error))))


def _with_contexts(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those during whose handling it was raised: a failing rollback hides why it was needed."""
    for _ in range(CONTEXTS_MAX):
        if error is None:
            return
        yield error
        error = error.__context__


def judge_lease(error: Exception, failed: Exception | None, final_errors: ErrorTypes, *, takeover: bool) -> Tried:
    """A try under a lease. `failed` is what the handler raised; any other error is the word of the store."""
    if error is not failed:
        return judge_refusal(error, final_errors)
    reason = reason_of(error)
    if isinstance(error, final_errors):
        return Tried(Handling.FINAL, reason)
    return Tried(Handling.RAISED if takeover else Handling.UNKNOWN, reason)


def judge_settlement(settlement: Settlement | None) -> Tried:
    """A handler that returned, or declared that nothing was done: whether the store knows."""
    match settlement:
        case Stored() | Superseded():
            return Tried(Handling.HANDLED)
        case Released():
            return Tried(Handling.NOTHING_DONE)
        case NotStored(error):
            return Tried(Handling.STORE_AWAY, f"it was handled, but its record was not stored: {reason_of(error)}")
        case Left() | None:
            return Tried(Handling.UNKNOWN)


def judge_refusal(error: Exception, final_errors: ErrorTypes) -> Tried:
    """The handler did not run: what the record says, or that the store cannot tell."""
    reason = reason_of(error)
    match error:
        case InProgress():
            return Tried(Handling.IN_PROGRESS, reason, delay_ms=round(error.retry_after * 1000))
        case KeyReused():
            return Tried(Handling.REUSED, "its id belongs to a message with another payload")
        case OutcomeUnknown():
            return Tried(Handling.UNKNOWN, reason)
        case RecordUnreadable():
            return Tried(Handling.UNREADABLE, reason)
        case KeyExpired() | ResultNotKept() | SupersededError():
            return Tried(Handling.DUPLICATE, reason)
        case StoreError():
            return Tried(Handling.STORE_AWAY, reason)
        case _:
            return Tried(Handling.FINAL if isinstance(error, final_errors) else Handling.STORE_AWAY, reason)
