"""What a caller does after each answer or failure of a request, as one table, and how long it waits before it repeats.

An answer closes an intent only if it tells how the operation ended. A refusal that comes before the operation (not
signed in, too many requests, still running) tells nothing about an earlier attempt whose answer was lost, so it never
closes one. A status of 500 without a sign that it is stored closes nothing either: the next try with the same key is
safe, and finds out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import cast

from msgspec import Struct

from semel.core.dialects import KeyDialect
from semel.core.http import PROBLEMS
from semel.core.records import Member

PROBLEM_MAX = 65_536
"""A problem document that is longer is not read."""
LINK_MAX = 4_096
DESCRIBED_BY = re.compile(r'<([^<>]*)>;\s*rel="?describedby')
SECONDS_DIGITS_MAX = 12
"""A `Retry-After` with more digits is read as this many nines: it is capped in any case."""
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
ATTEMPTS_MAX, WAIT_MS_MAX = 1_000, 24 * 3_600_000

StringHeaders = Sequence[tuple[str, str]]


class AttemptEnd(Member):
    """How one attempt to send a request ended."""

    ANSWERED = "an answer that tells how the operation ended"
    MOVED = "a redirect: the operation is somewhere else"
    NOT_KEPT = "it was carried out, and its answer was not kept"
    STORED_FAILURE = "a server error that the server has stored as the answer"
    SERVER_ERROR = "a server error, and nothing says that it is stored"
    IN_PROGRESS = "the first request with this key is still running"
    LATER = "not now: too many requests, too early, or out of service"
    GATEWAY = "a proxy got no answer: the operation may have run"
    UNAUTHORIZED = "the caller is not signed in, or is not allowed to"
    KEY_REFUSED = "the key is missing, malformed or belongs to another request"
    UNREADABLE = "the server cannot read its record of the key"
    UNKNOWN = "the server does not know how the operation ended"
    FORGOTTEN = "the server remembers the key, and no longer its answer"
    DO_NOT_REPEAT = "the server asks not to send it again"
    UNREACHED = "no connection: the request cannot have arrived"
    LOST = "the connection failed: the request may have arrived"
    UNSENDABLE = "the request could not be made"
    HELD_BACK = "a circuit breaker is open: the request was not sent"


class NextStep(Member):
    """What the caller does then."""

    CLOSE = "return the answer, and keep it: asking again sends nothing"
    REPEAT = "wait, and send the same bytes again with the same key"
    LEAVE_OPEN = "return the answer or the error; the intent stays open, and asking again sends it again"
    DOUBT = "return the answer; the intent stays open for a person to decide, and is not sent again by itself"


class RepeatLimit(Member):
    """Why a request was not sent again, although another attempt might have got an answer."""

    UNSAFE = "it has no key, and its method is not idempotent"
    ATTEMPTS = "no attempt is left"
    DEADLINE = "the next attempt would begin after the deadline"
    BUDGET = "the retry budget of this process is spent"


NEXT_STEPS: Mapping[AttemptEnd, NextStep] = MappingProxyType(
    {
        AttemptEnd.ANSWERED: NextStep.CLOSE,
        AttemptEnd.MOVED: NextStep.LEAVE_OPEN,
        AttemptEnd.NOT_KEPT: NextStep.CLOSE,
        AttemptEnd.STORED_FAILURE: NextStep.CLOSE,
        AttemptEnd.SERVER_ERROR: NextStep.LEAVE_OPEN,
        AttemptEnd.IN_PROGRESS: NextStep.REPEAT,
        AttemptEnd.LATER: NextStep.REPEAT,
        AttemptEnd.GATEWAY: NextStep.REPEAT,
        AttemptEnd.UNAUTHORIZED: NextStep.LEAVE_OPEN,
        AttemptEnd.KEY_REFUSED: NextStep.DOUBT,
        AttemptEnd.UNREADABLE: NextStep.DOUBT,
        AttemptEnd.UNKNOWN: NextStep.DOUBT,
        AttemptEnd.FORGOTTEN: NextStep.DOUBT,
        AttemptEnd.DO_NOT_REPEAT: NextStep.LEAVE_OPEN,
        AttemptEnd.UNREACHED: NextStep.REPEAT,
        AttemptEnd.LOST: NextStep.REPEAT,
        AttemptEnd.UNSENDABLE: NextStep.LEAVE_OPEN,
        AttemptEnd.HELD_BACK: NextStep.LEAVE_OPEN,
    }
)

TROUBLES = frozenset(
    {
        AttemptEnd.SERVER_ERROR,
        AttemptEnd.DO_NOT_REPEAT,
        AttemptEnd.LATER,
        AttemptEnd.GATEWAY,
        AttemptEnd.UNREACHED,
        AttemptEnd.LOST,
        AttemptEnd.UNSENDABLE,
    }
)
"""Ends that speak against the service, for circuit breakers. A failure that it has stored is an answer."""

OF_PROBLEM: Mapping[str, AttemptEnd] = MappingProxyType(
    {
        "key-missing": AttemptEnd.KEY_REFUSED,
        "key-malformed": AttemptEnd.KEY_REFUSED,
        "key-reused": AttemptEnd.KEY_REFUSED,
        "in-progress": AttemptEnd.IN_PROGRESS,
        "outcome-unknown": AttemptEnd.UNKNOWN,
        "result-not-kept": AttemptEnd.NOT_KEPT,
        "key-expired": AttemptEnd.FORGOTTEN,
        "body-too-large": AttemptEnd.ANSWERED,
        "internal-error": AttemptEnd.STORED_FAILURE,
        "not-executed": AttemptEnd.LATER,
        "unreachable": AttemptEnd.LATER,
        "interrupted": AttemptEnd.UNKNOWN,
        "record-unreadable": AttemptEnd.UNREADABLE,
        "too-many-keys": AttemptEnd.LATER,
        "store-unavailable": AttemptEnd.LATER,
    }
)
"""What each problem of semel's servers means to their callers (`core.http.PROBLEMS`)."""

OF_STATUS: Mapping[int, AttemptEnd] = MappingProxyType(
    {
        301: AttemptEnd.MOVED,
        302: AttemptEnd.MOVED,
        307: AttemptEnd.MOVED,
        308: AttemptEnd.MOVED,
        401: AttemptEnd.UNAUTHORIZED,
        403: AttemptEnd.UNAUTHORIZED,
        407: AttemptEnd.UNAUTHORIZED,
        408: AttemptEnd.LATER,
        425: AttemptEnd.LATER,
        429: AttemptEnd.LATER,
        502: AttemptEnd.GATEWAY,
        503: AttemptEnd.LATER,
        504: AttemptEnd.GATEWAY,
    }
)
"""What a status means where neither a problem document nor the dialect says more."""


class ReceivedProblem(Struct, frozen=True):
    """What a problem document (RFC 9457) says to the one who sent the request."""

    kind: str = ""
    """The kind, if it is one of semel's."""
    retryable: bool | None = None


class CallAnswer(Struct, frozen=True):
    """The answer to one attempt."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class Backoff(Struct, frozen=True, kw_only=True):
    """How often, and for how long, a request is sent again."""

    attempts: int = 8
    """How many times a request is sent at most, the first time included."""
    deadline_ms: int = 120_000
    """After this time no attempt begins."""
    first_ms: int = 500
    """The longest pause before the first repeat. It doubles with each repeat."""
    pause_ms_max: int = 30_000
    retry_after_ms_max: int = 60_000
    """The longest wait that a server may ask for with `Retry-After`."""

    def __post_init__(self) -> None:
        for field, most in (
            ("attempts", ATTEMPTS_MAX),
            ("deadline_ms", WAIT_MS_MAX),
            ("first_ms", WAIT_MS_MAX),
            ("pause_ms_max", WAIT_MS_MAX),
            ("retry_after_ms_max", WAIT_MS_MAX),
        ):
            value: int = getattr(self, field)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"{field} must be a whole number between 1 and {most}, not {value!r}")


def may_repeat(method: str, *, keyed: bool) -> bool:
    """Whether sending a request twice is safe: its method is idempotent, or the server is told its key."""
    return keyed or method.upper() in IDEMPOTENT_METHODS


def read_answer(answer: CallAnswer, dialect: KeyDialect) -> AttemptEnd:
    """What an answer means.

    A problem document says it most precisely, then the service's own header, then the dialect, then the status.
    """
    status = answer.status
    problem = read_problem(answer)
    if problem.kind:
        return OF_PROBLEM[problem.kind]
    linked = linked_kind(answer)
    if linked and (status >= 400 or (status == 202 and not is_replay(answer, dialect))):
        return OF_PROBLEM[linked]
    if find_header(answer.headers, dialect.rejection_header).lower() == "rejected":
        # OASIS says it by 412: the request was first sent so long ago that the service no longer knows its key.
        return AttemptEnd.FORGOTTEN if status == 412 else AttemptEnd.KEY_REFUSED
    if problem.retryable and status >= 400:
        return AttemptEnd.LATER
    asked = find_header(answer.headers, dialect.verdict_header).lower()
    if asked == "true" and status >= 400:
        return AttemptEnd.LATER
    is_busy = status in dialect.busy or has_code(answer, dialect.busy_codes)
    if asked == "false" and (status >= 500 or OF_STATUS.get(status) is AttemptEnd.LATER or is_busy):
        return AttemptEnd.DO_NOT_REPEAT
    if is_replay(answer, dialect) and OF_STATUS.get(status) in (None, AttemptEnd.GATEWAY):
        return AttemptEnd.ANSWERED if status < 500 else AttemptEnd.STORED_FAILURE
    if status in dialect.reused or has_code(answer, dialect.reused_codes):
        return AttemptEnd.KEY_REFUSED
    if is_busy and problem.retryable is None:
        return AttemptEnd.IN_PROGRESS
    if status in OF_STATUS:
        return OF_STATUS[status]
    return AttemptEnd.ANSWERED if status < 500 else AttemptEnd.SERVER_ERROR


def read_problem(answer: CallAnswer) -> ReceivedProblem:
    """The problem document of an answer. One that cannot be read says nothing."""
    media_type = find_header(answer.headers, "content-type").partition(";")[0].strip().lower()
    if media_type != "application/problem+json" or len(answer.body) > PROBLEM_MAX:
        return ReceivedProblem()
    try:
        document: object = json.loads(answer.body)
    except (ValueError, RecursionError):
        return ReceivedProblem()
    if not isinstance(document, dict):
        return ReceivedProblem()
    fields = cast("dict[str, object]", document)
    kind, retryable = fields.get("type"), fields.get("retryable")
    return ReceivedProblem(
        _kind_of(kind) if isinstance(kind, str) else "", retryable if isinstance(retryable, bool) else None
    )


def linked_kind(answer: CallAnswer) -> str:
    """The kind of problem that an answer of semel names in a link, where it is no problem document."""
    for name, value in answer.headers:
        if name.lower() == "link":
            for target in DESCRIBED_BY.findall(value[:LINK_MAX]):
                if kind := _kind_of(target):
                    return kind
    return ""


def _kind_of(problem_type: str) -> str:
    """`/.well-known/idempotency#in-progress` and `urn:semel:in-progress` are `in-progress`; another type is none."""
    for mark in ("/.well-known/idempotency#", "urn:semel:"):
        _, found, kind = problem_type.rpartition(mark)
        if found and kind in PROBLEMS:
            return kind
    return ""


def has_code(answer: CallAnswer, codes: Sequence[str]) -> bool:
    """Whether an error names one of these codes: as a text in JSON, or alone in an XML element."""
    if answer.status < 400 or not codes:
        return False
    body = answer.body[:PROBLEM_MAX]
    return any(f'"{code}"'.encode() in body or f">{code}<".encode() in body for code in codes)


def is_replay(answer: CallAnswer, dialect: KeyDialect) -> bool:
    """Whether the server says that this is the stored answer to an earlier attempt."""
    return find_header(answer.headers, dialect.replay_header).lower() in ("true", "?1")


def find_header(headers: StringHeaders, name: str) -> str:
    """The first value of a header, whatever the case of its name; empty without one, or without a name."""
    wanted = name.lower()
    return next((value.strip() for sent, value in headers if wanted and sent.lower() == wanted), "")


def read_retry_after(value: str, now_ms: int) -> int | None:
    """How long `Retry-After` asks to wait, in milliseconds: of seconds or an HTTP date. None if it cannot be read.

    A date in the past asks for no wait. Nothing is capped here.
    """
    value = value.strip()
    if value.isascii() and value.isdecimal():
        digits = value.lstrip("0") or "0"
        return 1_000 * int(digits if len(digits) <= SECONDS_DIGITS_MAX else "9" * SECONDS_DIGITS_MAX)
    try:
        date = parsedate_to_datetime(value)
        date_ms = int(1_000 * date.replace(tzinfo=date.tzinfo or UTC).timestamp())
    except (ValueError, OverflowError, IndexError, TypeError):
        return None
    return max(0, date_ms - now_ms)


def jitter_ms(backoff: Backoff, attempt: int, number: float) -> int:
    """The pause after so many attempts: full jitter, from nothing up to a limit that doubles with each attempt.

    `number` is random, from 0 up to but not including 1.
    """
    doubled = backoff.first_ms << min(max(0, attempt - 1), WAIT_MS_MAX.bit_length())
    return int(number * min(doubled, backoff.pause_ms_max))


def wait_ms(backoff: Backoff, attempt: int, number: float, asked_ms: int | None) -> int:
    """How long to wait before the next attempt. What the server asked for is capped, and jitter comes on top of it.

    So callers that were all asked to come back in a minute do not come back in the same moment.
    """
    return min(asked_ms or 0, backoff.retry_after_ms_max) + jitter_ms(backoff, attempt, number)
