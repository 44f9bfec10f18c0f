"""The plan of one call, against scripts: what it asks for, in which order, and what it makes of the replies."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from core.scripted import AWAY, Step, play
from semel.core.body_keys import put_key, read_body_key
from semel.core.call_values import (
    AnswerOrigin,
    AwaitIntent,
    CallAnswered,
    CallerSettings,
    CallRefusal,
    CallRefused,
    CallUnanswered,
    DrawNumber,
    IntentOf,
    NewKey,
    OutgoingCall,
    ReadDate,
    ReportAttempt,
    SendFailure,
    SendRequest,
    SpendRetry,
)
from semel.core.callers import run_call
from semel.core.dialects import AWS_EC2, DRAFT_07, REPEATABILITY, SQUARE, X_IDEMPOTENCY_KEY, KeyFormat
from semel.core.effects import Pause
from semel.core.journal import (
    BeginAttempt,
    CallRequest,
    CloseIntent,
    IntentDrifted,
    IntentEntry,
    IntentGranted,
    IntentHeld,
    IntentId,
    IntentKept,
    IntentReply,
    IntentStale,
    IntentState,
    KeptAnswer,
    LeaveIntent,
    OpenIntent,
    ReadIntent,
    RenewIntent,
)
from semel.core.records import NOBODY
from semel.core.relay import NewOwner, ReadClock
from semel.core.retries import NEXT_STEPS, AttemptEnd, Backoff, CallAnswer, NextStep, RepeatLimit
from semel.errors import StoreUnavailable

LEASE_MS, MAX_AGE_MS, DATE_MS = 1_000, 60_000, 1_700_000_000_000
SETTINGS = CallerSettings(
    dialect=DRAFT_07, backoff=Backoff(attempts=3, deadline_ms=10_000, first_ms=100), lease_ms=LEASE_MS
)
POST = CallRequest("POST", "https://api.example/pay", (), b"{}")
GET = replace(POST, method="GET", body=b"")
PAY = IntentId("pay:42")
INTENT = IntentOf(PAY, MAX_AGE_MS)
ENTRY = IntentEntry(PAY, "k1", POST, IntentState.OPEN, DATE_MS, MAX_AGE_MS, 1, "me", LEASE_MS)
KEYED = (("Idempotency-Key", '"k1"'),)
RENEW = RenewIntent(PAY, "me", LEASE_MS)
CREATED, BUSY = CallAnswer(201, (("location", "/1"),), b"paid"), CallAnswer(503)
CREATED_AGAIN = replace(CREATED, headers=(("Idempotent-Replayed", "true"),))
UNKNOWN = CallAnswer(409, (("content-type", "application/problem+json"),), b'{"type": "urn:semel:outcome-unknown"}')
LOST, UNREACHED, UNSENDABLE = (
    SendFailure(end, "reset") for end in (AttemptEnd.LOST, AttemptEnd.UNREACHED, AttemptEnd.UNSENDABLE)
)
START: Step = (ReadClock(), 0)
NEW_KEY: Step = (NewKey(KeyFormat.UUID4, ""), "k1")
OWNER: list[Step] = [START, (NewOwner(), "me"), (NewKey(KeyFormat.UUID4, "pay:42"), "k1")]


def opened(reply: IntentReply | Exception, key: str = "k1", request: CallRequest = POST) -> Step:
    return OpenIntent(PAY, request, key, "me", LEASE_MS, MAX_AGE_MS), reply


def sent(attempt: int, reply: object, renew: RenewIntent | None = None, **changed: Any) -> Step:
    return SendRequest(changed.get("headers", KEYED), changed.get("body", b"{}"), attempt, renew), reply


def reported(
    attempt: int, end: AttemptEnd, pause_ms: int = 0, limit: RepeatLimit | None = None, key: str = "k1"
) -> Step:
    return ReportAttempt(attempt, end, NextStep.LEAVE_OPEN if limit else NEXT_STEPS[end], pause_ms, limit, key), None


def allowed(pause_ms: int, clock_ms: int = 0, end: AttemptEnd = AttemptEnd.LOST) -> list[Step]:
    """A pause of so long is drawn, and nothing speaks against a repeat. Asking for one's own answer is free."""
    spent: list[Step] = [] if end is AttemptEnd.IN_PROGRESS else [(SpendRetry(), True)]
    return [(DrawNumber(), pause_ms / 100), (ReadClock(), clock_ms), *spent]


def repeated(attempt: int, end: AttemptEnd, pause_ms: int = 10, key: str = "k1") -> list[Step]:
    """An attempt of the first pause, for a call without an intent."""
    return [*allowed(pause_ms, end=end), reported(attempt, end, pause_ms, key=key), (Pause(pause_ms), None)]


def test_an_answer_ends_the_call() -> None:
    result = play(
        run_call(OutgoingCall(POST), SETTINGS), START, NEW_KEY, sent(1, CREATED), reported(1, AttemptEnd.ANSWERED)
    )
    assert result == CallAnswered(CREATED, AttemptEnd.ANSWERED, AnswerOrigin.FRESH, "k1", 1)


@pytest.mark.parametrize("reply", [LOST, UNREACHED, BUSY, CallAnswer(502), CallAnswer(409)])
def test_a_repeat_has_the_same_key_and_the_same_bytes(reply: CallAnswer | SendFailure) -> None:
    end = {502: AttemptEnd.GATEWAY, 409: AttemptEnd.IN_PROGRESS, 503: AttemptEnd.LATER}
    received = reply.end if isinstance(reply, SendFailure) else end[reply.status]
    result = play(
        run_call(OutgoingCall(POST), SETTINGS),
        START,
        NEW_KEY,
        sent(1, reply),
        *repeated(1, received),
        sent(2, CREATED_AGAIN),
        reported(2, AttemptEnd.ANSWERED),
    )
    assert result == CallAnswered(CREATED_AGAIN, AttemptEnd.ANSWERED, AnswerOrigin.REPLAYED, "k1", 2)


@pytest.mark.parametrize("reply", [LOST, UNREACHED, BUSY])
def test_a_request_that_is_not_safe_to_repeat_is_sent_once(reply: CallAnswer | SendFailure) -> None:
    end = reply.end if isinstance(reply, SendFailure) else AttemptEnd.LATER
    result = play(
        run_call(OutgoingCall(POST), replace(SETTINGS, makes_keys=False)),
        START,
        sent(1, reply, headers=()),
        (DrawNumber(), 0.5),
        reported(1, end, limit=RepeatLimit.UNSAFE, key=""),
    )
    if isinstance(reply, SendFailure):
        assert result == CallUnanswered(reply, "", 1, RepeatLimit.UNSAFE)
    else:
        assert result == CallAnswered(reply, end, AnswerOrigin.FRESH, "", 1, limit=RepeatLimit.UNSAFE)


def test_an_idempotent_method_is_repeated_without_a_key() -> None:
    result = play(
        run_call(OutgoingCall(GET), SETTINGS),
        START,
        sent(1, LOST, headers=(), body=b""),
        *repeated(1, AttemptEnd.LOST, key=""),
        sent(2, CREATED, headers=(), body=b""),
        reported(2, AttemptEnd.ANSWERED, key=""),
    )
    assert isinstance(result, CallAnswered)
    assert (result.key, result.attempts) == ("", 2)


def test_the_callers_own_key_is_left_as_it_is() -> None:
    result = play(
        run_call(OutgoingCall(POST, key="mine"), SETTINGS),
        START,
        sent(1, LOST, headers=()),
        *repeated(1, AttemptEnd.LOST, key="mine"),
        sent(2, CREATED, headers=()),
        reported(2, AttemptEnd.ANSWERED, key="mine"),
    )
    assert isinstance(result, CallAnswered)
    assert result.key == "mine"
    with pytest.raises(ValueError, match="key has 300 bytes"):
        play(run_call(OutgoingCall(POST, key="k" * 300), SETTINGS), START)


@pytest.mark.parametrize(
    ("reply", "end"),
    [
        (UNKNOWN, AttemptEnd.UNKNOWN),
        (CallAnswer(422), AttemptEnd.KEY_REFUSED),
        (CallAnswer(401), AttemptEnd.UNAUTHORIZED),
        (CallAnswer(500), AttemptEnd.SERVER_ERROR),
        (UNSENDABLE, AttemptEnd.UNSENDABLE),
    ],
)
def test_what_is_never_repeated(reply: CallAnswer | SendFailure, end: AttemptEnd) -> None:
    result = play(run_call(OutgoingCall(POST), SETTINGS), START, NEW_KEY, sent(1, reply), reported(1, end))
    assert isinstance(result, CallAnswered | CallUnanswered)
    assert result.attempts == 1


def test_the_last_attempt_is_not_repeated() -> None:
    result = play(
        run_call(OutgoingCall(POST), SETTINGS),
        START,
        NEW_KEY,
        sent(1, LOST),
        *repeated(1, AttemptEnd.LOST),
        sent(2, LOST),
        (DrawNumber(), 0.5),
        (ReadClock(), 0),
        (SpendRetry(), True),
        reported(2, AttemptEnd.LOST, 100),
        (Pause(100), None),
        sent(3, LOST),
        (DrawNumber(), 0.5),
        reported(3, AttemptEnd.LOST, limit=RepeatLimit.ATTEMPTS),
    )
    assert result == CallUnanswered(LOST, "k1", 3, RepeatLimit.ATTEMPTS)


def test_an_attempt_that_a_breaker_holds_back_is_not_counted() -> None:
    held_back = SendFailure(AttemptEnd.HELD_BACK, "open")
    result = play(
        run_call(OutgoingCall(POST, intent=INTENT), SETTINGS),
        *OWNER,
        opened(IntentGranted(ENTRY)),
        sent(1, held_back, RENEW),
        reported(1, AttemptEnd.HELD_BACK),
        (LeaveIntent(PAY, "me", "a circuit breaker is open: the request was not sent: open"), True),
    )
    assert result == CallUnanswered(held_back, "k1", 0)


def test_no_attempt_begins_after_the_deadline() -> None:
    for clock_ms, limit in ((9_949, RepeatLimit.BUDGET), (9_950, RepeatLimit.DEADLINE)):
        script: list[Step] = [START, NEW_KEY, sent(1, LOST), (DrawNumber(), 0.5), (ReadClock(), clock_ms)]
        if limit is RepeatLimit.BUDGET:
            script += [(SpendRetry(), False)]
        result = play(run_call(OutgoingCall(POST), SETTINGS), *script, reported(1, AttemptEnd.LOST, limit=limit))
        assert result == CallUnanswered(LOST, "k1", 1, limit), "and none beyond the budget of the process"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (BUSY, "503: not now: too many requests, too early, or out of service; the retry budget of this process is"),
        (LOST, "the connection failed: the request may have arrived; the retry budget of this process is spent: reset"),
    ],
)
def test_without_a_budget_the_intent_stays_open_and_says_why(reply: CallAnswer | SendFailure, why: str) -> None:
    end = reply.end if isinstance(reply, SendFailure) else AttemptEnd.LATER
    why += " spent" if reply is BUSY else ""
    play(
        run_call(OutgoingCall(POST, intent=INTENT), SETTINGS),
        *OWNER,
        opened(IntentGranted(ENTRY)),
        sent(1, reply, RENEW),
        (DrawNumber(), 0.5),
        (ReadClock(), 0),
        (SpendRetry(), False),
        reported(1, end, limit=RepeatLimit.BUDGET),
        (LeaveIntent(PAY, "me", why), True),
    )


@pytest.mark.parametrize(
    ("value", "pause_ms"), [("2", 2_010), ("Tue, 14 Nov 2023 22:13:23 GMT", 3_010), ("soon", 10), ("0", 10)]
)
def test_retry_after_is_honoured(value: str, pause_ms: int) -> None:
    play(
        run_call(OutgoingCall(POST), SETTINGS),
        START,
        NEW_KEY,
        sent(1, replace(BUSY, headers=(("Retry-After", value),))),
        (DrawNumber(), 0.1),
        (ReadDate(), DATE_MS),
        (ReadClock(), 0),
        (SpendRetry(), True),
        reported(1, AttemptEnd.LATER, pause_ms),
        (Pause(pause_ms), None),
        sent(2, CREATED),
        reported(2, AttemptEnd.ANSWERED),
    )


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    far = replace(BUSY, headers=(("Retry-After", "1000000000"),))
    result = play(
        run_call(OutgoingCall(POST), SETTINGS),
        START,
        NEW_KEY,
        sent(1, far),
        (DrawNumber(), 0.1),
        (ReadDate(), DATE_MS),
        (ReadClock(), 0),
        reported(1, AttemptEnd.LATER, limit=RepeatLimit.DEADLINE),
    )
    assert result == CallAnswered(far, AttemptEnd.LATER, AnswerOrigin.FRESH, "k1", 1, limit=RepeatLimit.DEADLINE)


def test_an_intent_is_stored_before_it_is_sent_and_closed_by_its_answer() -> None:
    result = play(
        run_call(OutgoingCall(POST, intent=INTENT), SETTINGS),
        *OWNER,
        opened(IntentGranted(ENTRY)),
        sent(1, CREATED, RENEW),
        reported(1, AttemptEnd.ANSWERED),
        (CloseIntent(PAY, "k1", KeptAnswer.of(201, CREATED.headers, b"paid")), True),
    )
    assert result == CallAnswered(CREATED, AttemptEnd.ANSWERED, AnswerOrigin.FRESH, "k1", 1)


def test_an_intent_that_another_process_began_is_sent_with_its_key() -> None:
    older = replace(ENTRY, key="k0")
    result = play(
        run_call(OutgoingCall(POST, intent=INTENT), SETTINGS),
        *OWNER,
        opened(IntentGranted(older)),
        sent(1, CREATED, RENEW, headers=(("Idempotency-Key", '"k0"'),)),
        reported(1, AttemptEnd.ANSWERED, key="k0"),
        (CloseIntent(PAY, "k0", KeptAnswer.of(201, CREATED.headers, b"paid")), True),
    )
    assert isinstance(result, CallAnswered)
    assert result.key == "k0"


def test_a_repeat_of_an_intent_is_counted_first_and_held_while_it_waits() -> None:
    play(
        run_call(OutgoingCall(POST, intent=INTENT), SETTINGS),
        *OWNER,
        opened(IntentGranted(ENTRY)),
        sent(1, LOST, RENEW),
        *allowed(10),
        reported(1, AttemptEnd.LOST, 10),
        (RenewIntent(PAY, "me", 10 + LEASE_MS), True),
        (Pause(10), None),
        (BeginAttempt(PAY, "me", LEASE_MS), True),
        sent(2, CREATED, RENEW),
        reported(2, AttemptEnd.ANSWERED),
        (CloseIntent(PAY, "k1", KeptAnswer.of(201, CREATED.headers, b"paid")), True),
    )


@pytest.mark.parametrize(
    ("reply", "end", "error", "in_doubt"),
    [
        (CallAnswer(401), AttemptEnd.UNAUTHORIZED, "401: the caller is not signed in", False),
        (CallAnswer(500), AttemptEnd.SERVER_ERROR, "500: a server error", False),
        (UNSENDABLE, AttemptEnd.UNSENDABLE, "the request could not be made: reset", False),
        (UNKNOWN, AttemptEnd.UNKNOWN, "409: the server does not know", True),
        (CallAnswer(422), AttemptEnd.KEY_REFUSED, "422: the key is missing", True),
    ],
)
def test_an_intent_stays_open_if_nothing_tells_how_it_ended(
    reply: CallAnswer | SendFailure, end: AttemptEnd, error: str, in_doubt: bool
) -> None:
    plan = run_call(OutgoingCall(POST, intent=INTENT), SETTINGS)
    reason = f"{reply.status}: {end.value}" if isinstance(reply, CallAnswer) else f"{end.value}: {reply.error}"
    assert reason.startswith(error)
    play(
        plan,
        *OWNER,
        opened(IntentGranted(ENTRY)),
        sent(1, reply, RENEW),
        reported(1, end),
        (LeaveIntent(PAY, "me", reason, in_doubt), True),
    )


def test_a_kept_answer_needs_no_request() -> None:
    kept = KeptAnswer.of(201, (), b"paid")
    entry = replace(ENTRY, state=IntentState.ANSWERED, answer=kept)
    result = play(run_call(OutgoingCall(POST, intent=INTENT), SETTINGS), *OWNER, opened(IntentKept(entry)))
    assert result == CallAnswered(kept, AttemptEnd.ANSWERED, AnswerOrigin.JOURNAL, "k1", 0)


@pytest.mark.parametrize(
    ("reply", "refusal"),
    [
        (IntentDrifted(ENTRY, POST.digest), CallRefusal.DRIFTED),
        (IntentStale(ENTRY), CallRefusal.TOO_OLD),
        (IntentStale(replace(ENTRY, state=IntentState.DOUBTFUL)), CallRefusal.DOUBTFUL),
    ],
)
def test_what_the_journal_refuses_is_not_sent(reply: IntentReply, refusal: CallRefusal) -> None:
    result = play(run_call(OutgoingCall(POST, intent=INTENT), SETTINGS), *OWNER, opened(reply))
    assert result == CallRefused(refusal, reply.entry, POST.digest)


def test_an_intent_with_another_key_than_the_callers_is_refused() -> None:
    start: list[Step] = [START, (NewOwner(), "me")]
    granted = play(
        run_call(OutgoingCall(POST, "mine", INTENT), SETTINGS),
        *start,
        opened(IntentGranted(ENTRY), "mine"),
        (LeaveIntent(PAY, "me", CallRefusal.OTHER_KEY.value), True),
    )
    held = play(run_call(OutgoingCall(POST, "mine", INTENT), SETTINGS), *start, opened(IntentHeld(ENTRY, 0), "mine"))
    assert granted == held == CallRefused(CallRefusal.OTHER_KEY, ENTRY, POST.digest)
    drifted = play(
        run_call(OutgoingCall(POST, "mine", INTENT), SETTINGS),
        *start,
        opened(IntentDrifted(ENTRY, POST.digest), "mine"),
    )
    assert drifted == CallRefused(CallRefusal.DRIFTED, ENTRY, POST.digest)


def test_others_wait_for_the_sender_and_get_its_answer() -> None:
    held = IntentHeld(replace(ENTRY, owner="other", lease_until_ms=200), 100)
    renewed = replace(held.entry, lease_until_ms=900)
    kept = KeptAnswer.of(201, (), b"paid")
    answered = replace(ENTRY, state=IntentState.ANSWERED, answer=kept)
    result = play(
        run_call(OutgoingCall(POST, intent=INTENT), SETTINGS),
        *OWNER,
        opened(held),
        (ReadClock(), 5),
        (AwaitIntent(PAY, 20), None),
        (ReadIntent(PAY), renewed),
        (AwaitIntent(PAY, 40), None),
        (ReadIntent(PAY), renewed),
        (AwaitIntent(PAY, 40), None),  # of the lease that it has seen, this is left
        (ReadIntent(PAY), renewed),
        opened(IntentHeld(renewed, 200)),
        (ReadClock(), 105),
        (AwaitIntent(PAY, 20), None),
        (ReadIntent(PAY), answered),
        opened(IntentKept(answered)),
    )
    assert isinstance(result, CallAnswered)
    assert (result.answer, result.attempts) == (kept, 0)


@pytest.mark.parametrize("seen", [None, replace(ENTRY, owner=NOBODY), AWAY])
def test_a_waiter_opens_the_intent_when_the_sender_has_left_it(seen: object) -> None:
    held = IntentHeld(replace(ENTRY, owner="other", lease_until_ms=900), 100)
    result = play(
        run_call(OutgoingCall(POST, intent=INTENT), SETTINGS),
        *OWNER,
        opened(held),
        (ReadClock(), 5),
        (AwaitIntent(PAY, 20), None),
        (ReadIntent(PAY), seen),
        opened(IntentStale(ENTRY)),
    )
    assert isinstance(result, CallRefused)


def test_waiting_for_another_sender_ends_at_the_deadline() -> None:
    held = IntentHeld(replace(ENTRY, owner="other"), 0)
    result = play(run_call(OutgoingCall(POST, intent=INTENT), SETTINGS), *OWNER, opened(held), (ReadClock(), 10_000))
    assert result == CallRefused(CallRefusal.BUSY, held.entry, POST.digest)


OVERTAKEN: dict[str, list[Step]] = {
    "while it was sent": [(RenewIntent(PAY, "me", 10 + LEASE_MS), False)],
    "while it waited": [
        (RenewIntent(PAY, "me", 10 + LEASE_MS), True),
        (Pause(10), None),
        (BeginAttempt(PAY, "me", LEASE_MS), False),
    ],
}
LOST_ONCE: list[Step] = [
    *OWNER,
    opened(IntentGranted(ENTRY)),
    sent(1, LOST, RENEW),
    *allowed(10),
    reported(1, AttemptEnd.LOST, 10),
]


@pytest.mark.parametrize("when", OVERTAKEN)
def test_a_sender_that_was_overtaken_asks_the_journal_again(when: str) -> None:
    left: Step = (LeaveIntent(PAY, "me", AttemptEnd.LOST.value), False)
    plan = run_call(OutgoingCall(POST, intent=INTENT), SETTINGS)
    stale = play(plan, *LOST_ONCE, *OVERTAKEN[when], left, opened(IntentStale(ENTRY)))
    assert stale == CallRefused(CallRefusal.TOO_OLD, ENTRY, POST.digest)
    again = play(
        run_call(OutgoingCall(POST, intent=INTENT), SETTINGS),
        *LOST_ONCE,
        *OVERTAKEN[when],
        left,
        opened(IntentGranted(ENTRY)),
        sent(2, CREATED, RENEW),
        reported(2, AttemptEnd.ANSWERED),
        (CloseIntent(PAY, "k1", KeptAnswer.of(201, CREATED.headers, b"paid")), True),
    )
    assert isinstance(again, CallAnswered)
    assert again.attempts == 2


def test_an_intent_that_was_forgotten_while_it_was_sent_begins_anew_with_the_same_key() -> None:
    theirs = replace(ENTRY, key="theirs")
    keyed = (("Idempotency-Key", '"theirs"'),)
    result = play(
        run_call(OutgoingCall(POST, intent=INTENT), SETTINGS),
        *OWNER,
        opened(IntentGranted(theirs)),
        sent(1, LOST, RENEW, headers=keyed),
        *allowed(10),
        reported(1, AttemptEnd.LOST, 10, key="theirs"),
        *OVERTAKEN["while it was sent"],
        (LeaveIntent(PAY, "me", AttemptEnd.LOST.value), False),
        opened(IntentGranted(theirs), "theirs"),
        sent(2, CREATED, RENEW, headers=keyed),
        reported(2, AttemptEnd.ANSWERED, key="theirs"),
        (CloseIntent(PAY, "theirs", KeptAnswer.of(201, CREATED.headers, b"paid")), True),
    )
    assert isinstance(result, CallAnswered)
    assert result.key == "theirs"


def test_nothing_is_sent_if_the_journal_fails_first() -> None:
    with pytest.raises(StoreUnavailable):
        play(run_call(OutgoingCall(POST, intent=INTENT), SETTINGS), *OWNER, opened(AWAY))


@pytest.mark.parametrize("step", range(2))
def test_a_journal_that_fails_later_ends_the_repeats(step: int) -> None:
    steps: list[Step] = [*OVERTAKEN["while it waited"][: 2 * step + 1]]
    steps[-1] = (steps[-1][0], AWAY)
    result = play(run_call(OutgoingCall(POST, intent=INTENT), SETTINGS), *LOST_ONCE, *steps)
    assert result == CallUnanswered(LOST, "k1", 1)


@pytest.mark.parametrize("reply", [LOST, BUSY])
def test_a_journal_that_fails_when_it_is_asked_again_ends_the_repeats(reply: CallAnswer | SendFailure) -> None:
    end = reply.end if isinstance(reply, SendFailure) else AttemptEnd.LATER
    result = play(
        run_call(OutgoingCall(POST, intent=INTENT), SETTINGS),
        *OWNER,
        opened(IntentGranted(ENTRY)),
        sent(1, reply, RENEW),
        *allowed(10),
        reported(1, end, 10),
        *OVERTAKEN["while it was sent"],
        (LeaveIntent(PAY, "me", end.value), False),
        opened(AWAY),
    )
    if isinstance(reply, SendFailure):
        assert result == CallUnanswered(reply, "k1", 1)
    else:
        assert result == CallAnswered(reply, end, AnswerOrigin.FRESH, "k1", 1, str(AWAY))


def test_an_answer_is_returned_even_if_the_journal_cannot_keep_it() -> None:
    result = play(
        run_call(OutgoingCall(POST, intent=INTENT), SETTINGS),
        *OWNER,
        opened(IntentGranted(ENTRY)),
        sent(1, CREATED, RENEW),
        reported(1, AttemptEnd.ANSWERED),
        (CloseIntent(PAY, "k1", KeptAnswer.of(201, CREATED.headers, b"paid")), AWAY),
    )
    assert result == CallAnswered(CREATED, AttemptEnd.ANSWERED, AnswerOrigin.FRESH, "k1", 1, str(AWAY))


def test_a_journal_that_cannot_be_told_to_leave_is_left() -> None:
    result = play(
        run_call(OutgoingCall(POST, intent=INTENT), SETTINGS),
        *OWNER,
        opened(IntentGranted(ENTRY)),
        sent(1, UNSENDABLE, RENEW),
        reported(1, AttemptEnd.UNSENDABLE),
        (LeaveIntent(PAY, "me", "the request could not be made: reset"), AWAY),
    )
    assert result == CallUnanswered(UNSENDABLE, "k1", 1)


FIRST_SENT = ("Repeatability-First-Sent", "Tue, 14 Nov 2023 22:13:20 GMT")


def test_first_sent_comes_from_the_journal_or_from_the_first_attempt() -> None:
    settings = replace(SETTINGS, dialect=REPEATABILITY)
    headers = (("Repeatability-Request-ID", "k1"), FIRST_SENT)
    play(
        run_call(OutgoingCall(POST, intent=INTENT), settings),
        *OWNER,
        opened(IntentGranted(ENTRY)),
        sent(1, CREATED, RENEW, headers=headers),
        reported(1, AttemptEnd.ANSWERED),
        (CloseIntent(PAY, "k1", KeptAnswer.of(201, CREATED.headers, b"paid")), True),
    )
    date: Step = (ReadDate(), DATE_MS)
    [answered, of_caller, keyless] = [reported(1, AttemptEnd.ANSWERED, key=key) for key in ("k1", "mine", "")]
    play(run_call(OutgoingCall(POST), settings), START, NEW_KEY, date, sent(1, CREATED, headers=headers), answered)
    play(
        run_call(OutgoingCall(POST, "mine"), settings), START, date, sent(1, CREATED, headers=(FIRST_SENT,)), of_caller
    )
    play(run_call(OutgoingCall(GET), settings), START, sent(1, CREATED, headers=(), body=b""), keyless)


def test_a_key_that_stands_in_the_body() -> None:
    settings = replace(SETTINGS, dialect=SQUARE)
    order = replace(POST, body=b'{"amount": 5}')
    answered = reported(1, AttemptEnd.ANSWERED)
    with_key = b'{"idempotency_key": "k1", "amount": 5}'
    play(run_call(OutgoingCall(order), settings), START, NEW_KEY, sent(1, CREATED, headers=(), body=with_key), answered)
    result = play(
        run_call(OutgoingCall(replace(order, body=with_key)), settings),
        START,
        sent(1, CREATED, headers=(), body=with_key),
        answered,
    )
    assert isinstance(result, CallAnswered)
    assert result.key == "k1", "the caller's own"


def test_a_body_that_cannot_take_a_key_is_refused_before_an_intent_is_opened() -> None:
    for body in (b"", b"[]", b"not json", b"[" * 100_000):
        with pytest.raises(ValueError, match="field idempotency_key of a JSON object"):
            play(
                run_call(OutgoingCall(replace(POST, body=body), intent=INTENT), replace(SETTINGS, dialect=SQUARE)),
                START,
            )
    with pytest.raises(TypeError, match="idempotency_key must be text, not int"):
        read_body_key(replace(POST, body=b'{"idempotency_key": 7}'), SQUARE)


def test_a_function_of_the_caller_puts_the_key_into_the_body() -> None:
    form = replace(POST, body=b"Action=RunInstances")
    answered = reported(1, AttemptEnd.ANSWERED)
    with_key = b"Action=RunInstances&ClientToken=k1"
    play(
        run_call(OutgoingCall(form), replace(SETTINGS, dialect=AWS_EC2)),
        START,
        NEW_KEY,
        sent(1, CREATED, headers=(), body=with_key),
        answered,
    )
    taken = OutgoingCall(replace(form, body=with_key), intent=INTENT)
    with pytest.raises(ValueError, match="the form has a field ClientToken already"):
        play(run_call(taken, replace(SETTINGS, dialect=AWS_EC2)), START)


def test_an_intent_is_not_sent_for_longer_than_the_service_remembers_its_key() -> None:
    hour = replace(INTENT, max_age_ms=3_600_000)
    settings = replace(SETTINGS, dialect=REPEATABILITY)
    with pytest.raises(ValueError, match=r"max_age is 3600 s, .* repeatability .* for 300 s: give a shorter"):
        play(run_call(OutgoingCall(POST, intent=hour), settings), START)
    longer = replace(settings, dialect=REPEATABILITY.keeping(timedelta(hours=1)))
    with pytest.raises(AssertionError, match="the plan asks for NewOwner"):
        play(run_call(OutgoingCall(POST, intent=hour), longer), START)


def test_without_an_intent_there_is_no_name_to_derive_a_key_from() -> None:
    settings = replace(SETTINGS, dialect=replace(DRAFT_07, format=KeyFormat.DERIVED))
    answered = reported(1, AttemptEnd.ANSWERED)
    play(run_call(OutgoingCall(POST), settings), START, NEW_KEY, sent(1, CREATED), answered)


def test_other_dialects_leave_the_body_alone() -> None:
    assert put_key(replace(POST, body=b"\xff"), "k1", X_IDEMPOTENCY_KEY) == b"\xff"
    assert read_body_key(POST, X_IDEMPOTENCY_KEY) == ""
