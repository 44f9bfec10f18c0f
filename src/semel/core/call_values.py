"""What the plan of a call takes, asks for and returns, as values."""

from __future__ import annotations

from msgspec import Struct

from semel.core.dialects import DRAFT_07, KeyDialect, KeyFormat
from semel.core.effects import Effect
from semel.core.journal import CallRequest, IntentEntry, IntentId, KeptAnswer, RenewIntent, TextHeaders
from semel.core.records import Member
from semel.core.retries import AttemptEnd, Backoff, CallAnswer, NextStep, RepeatLimit

LEASE_MS = 30_000


class IntentOf(Struct, frozen=True):
    """The intent that a call belongs to."""

    id: IntentId
    max_age_ms: int


class OutgoingCall(Struct, frozen=True):
    """A request of the caller."""

    request: CallRequest
    key: str = ""
    """The key that the caller has put into the request itself. It is never replaced."""
    intent: IntentOf | None = None
    earlier_key: str = ""
    """The key under which this request was sent before, if it is sent anew because the server asked who sends it.

    It stands for a new key: whether the earlier request was carried out may be unknown.
    """


class CallerSettings(Struct, frozen=True, kw_only=True):
    dialect: KeyDialect = DRAFT_07
    backoff: Backoff = Backoff()
    lease_ms: int = LEASE_MS
    """How long a sender holds an intent without saying so again."""
    makes_keys: bool = True
    """Whether a request whose method is not idempotent gets a key, if the caller gave none and has no intent."""


class NewKey(Effect[str], frozen=True):
    """A new key. Only a derived one uses the name."""

    format: KeyFormat
    name: str


class ReadDate(Effect[int], frozen=True):
    """The date in milliseconds since 1970, by a clock that people set."""


class DrawNumber(Effect[float], frozen=True):
    """A random number from 0 up to but not including 1."""


class SpendRetry(Effect[bool], frozen=True):
    """Whether the budget of this process allows one more repeat.

    Asking for the answer of one's own request that is still running is not counted: the service paces it, it adds no
    work, and the attempts are bounded.
    """


class AwaitIntent(Effect[None], frozen=True):
    """Sleep until another sender may be done with the intent, at most `timeout_ms`. May wake early."""

    id: IntentId
    timeout_ms: int


class SendFailure(Struct, frozen=True):
    """There was no answer. `end` says whether the request may have arrived."""

    end: AttemptEnd
    error: str


class SendRequest(Effect[CallAnswer | SendFailure], frozen=True):
    """Send the request of the call with these headers added, and with this body.

    Meanwhile the driver renews the lease, if there is one to `renew`.
    """

    headers: TextHeaders
    body: bytes
    attempt: int
    renew: RenewIntent | None = None


class ReportAttempt(Effect[None], frozen=True):
    """Report one attempt, for events, metrics and the log."""

    attempt: int
    end: AttemptEnd
    step: NextStep
    pause_ms: int = 0
    limit: RepeatLimit | None = None
    key: str = ""


class AnswerOrigin(Member):
    """Where an answer comes from."""

    FRESH = "from the server, for this attempt"
    REPLAYED = "from the server, which had stored it"
    JOURNAL = "from the journal: nothing was sent"


class CallRefusal(Member):
    """Why nothing was sent, or nothing more."""

    DRIFTED = "the name of the intent belongs to another request"
    OTHER_KEY = "the intent has another key than the request"
    TOO_OLD = "the intent is older than its max_age: the server may have forgotten its key"
    DOUBTFUL = "the server could not say how the operation ended"
    BUSY = "another sender holds the intent, and was not done within the deadline"


class CallAnswered(Struct, frozen=True):
    """The call has an answer. If the journal could not keep it, `unkept` says why, and the intent is still open."""

    answer: CallAnswer | KeptAnswer
    end: AttemptEnd
    origin: AnswerOrigin
    key: str
    attempts: int
    unkept: str = ""
    limit: RepeatLimit | None = None


class CallUnanswered(Struct, frozen=True):
    """The call has no answer."""

    failure: SendFailure
    key: str
    attempts: int
    limit: RepeatLimit | None = None


class CallRefused(Struct, frozen=True):
    """The journal does not allow to send it."""

    refusal: CallRefusal
    entry: IntentEntry
    digest: str
    """Of the request that was asked for."""


CallResult = CallAnswered | CallUnanswered | CallRefused


class IntentOvertaken(Struct, frozen=True):
    """Another sender holds the intent now, or it has become too old, or it was forgotten."""

    result: CallAnswered | CallUnanswered
    """Of the last attempt."""
