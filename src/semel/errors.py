"""The errors of semel, one class for each way in which a caller can react."""

from __future__ import annotations


class SemelError(Exception):
    """The root of everything that semel raises on purpose."""


class StoreError(SemelError):
    """A store failed; replies are values, so an exception always means a failure."""


class StoreUnavailable(StoreError):
    """The store could not answer: what was asked of it may or may not have happened.

    `due_ms` is when the call had to be answered, by the driver's clock; None if the store does not tell.
    """

    due_ms: int | None = None


class StoreTimeout(StoreUnavailable):
    """The store did not reply within the time of one call, so its caller has waited long enough."""


class StoreMisconfigured(StoreError):
    """The store cannot keep its promises with these settings; the message names the setting and how to mend it."""


class RecordUnreadable(StoreError):
    """A record is there but was not written in a form this version knows; it is never treated as absent."""


class NotCommitted(StoreError):
    """The transaction of a request did not commit, or its end cannot be read now. A repeat finds out, safely.

    `for_good` says that the database refused what was written, as it would refuse it again.
    """

    def __init__(self, message: str, *, for_good: bool = False) -> None:
        super().__init__(message)
        self.for_good = for_good


class NotExecuted(SemelError):
    """Raised by the work to declare that nothing was done, so that the key may be tried again."""


class OutcomeUnknown(SemelError):
    """Whether the work took effect is unknown, so it never runs again silently.

    The work raises it to declare that. Callers of a function get it when its executor was lost or failed.
    """


class Unanswered(OutcomeUnknown):
    """The service that does the work gave no answer and may still be working, so the lease lapses in its own time."""


class InProgress(SemelError):
    """The first call with this key is still running; `retry_after` says in how many seconds to ask again."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class CircuitOpen(SemelError):
    """A circuit breaker is open, so a request was not sent. An intent stays open, and is sent when asked for again."""


class KeyReused(SemelError):
    """The key belongs to a call with other arguments; nothing was run."""


class KeyExpired(SemelError):
    """The key was used, and its result is past retention; nothing was run."""


class ResultNotKept(SemelError):
    """The work took effect and never runs again under this key, but its result could not be kept."""


class Superseded(SemelError):
    """Another attempt took the key over while this one was running; `op.result` is what the store holds, if it does."""


class NotDiscovered(SemelError):
    """A service does not say how it wants keys to be sent, or says it in a way that cannot be adopted for sure."""


class Misuse(SemelError):
    """The code that calls semel would lose its protection; the message says what to write instead."""


class Unstorable(SemelError, TypeError):
    """A type that cannot be kept as data; found before the work runs where the return annotation allows it."""


class BrokerMisconfigured(SemelError):
    """With these settings messages would be lost or doubled; the message names the setting and how to mend it."""


class BrokerUnavailable(SemelError):
    """A broker did not confirm a message: it may or may not have it. The message is published again, with its id."""


class NotPublished(SemelError):
    """A broker answered that it did not take a message. A later attempt may succeed, so this one counts."""


class Poison(SemelError):
    """A broker refuses a message, and would refuse it again: it belongs with the dead letters."""


class MessageReused(SemelError):
    """The id belongs to a message with another topic, key, payload, content type or headers; nothing was added."""
