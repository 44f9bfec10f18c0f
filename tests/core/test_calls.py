"""Events about calls: what they name, what they keep to themselves, and what the end of a call is called."""

import pytest

from semel.core.call_values import (
    AnswerOrigin,
    CallAnswered,
    CallRefusal,
    CallRefused,
    CallResult,
    CallUnanswered,
    SendFailure,
)
from semel.core.calls import CallConclusion, CallEvent, call_key, origin_of
from semel.core.events import NO_KEY, Event, EventKind
from semel.core.journal import CallRequest, IntentEntry, IntentId, IntentState
from semel.core.outcomes import REASONS, judge_call
from semel.core.retries import NEXT_STEPS, AttemptEnd, CallAnswer, NextStep, RepeatLimit

KEY = call_key("POST", "https://api.example", "order-4711")
ENTRY = IntentEntry(IntentId("pay"), "k", CallRequest("POST", "https://api.example/"), IntentState.OPEN, 0, 1, 1, "", 0)


def answered(end: AttemptEnd, origin: AnswerOrigin = AnswerOrigin.FRESH) -> CallAnswered:
    return CallAnswered(CallAnswer(201), end, origin, "k", 1)


@pytest.mark.parametrize(
    ("result", "judged"),
    [
        (answered(AttemptEnd.ANSWERED), (CallConclusion.ANSWERED, "")),
        (answered(AttemptEnd.STORED_FAILURE, AnswerOrigin.REPLAYED), (CallConclusion.REPLAYED, "")),
        (answered(AttemptEnd.ANSWERED, AnswerOrigin.JOURNAL), (CallConclusion.JOURNAL, "")),
        (answered(AttemptEnd.SERVER_ERROR), (CallConclusion.UNDECIDED, "server_error")),
        (answered(AttemptEnd.UNKNOWN), (CallConclusion.DOUBTFUL, "unknown")),
        (CallUnanswered(SendFailure(AttemptEnd.HELD_BACK, ""), "k", 0), (CallConclusion.UNDECIDED, "held_back")),
        (
            CallUnanswered(SendFailure(AttemptEnd.LOST, ""), "k", 1, RepeatLimit.BUDGET),
            (CallConclusion.UNDECIDED, "budget"),
        ),
        (CallRefused(CallRefusal.TOO_OLD, ENTRY, ""), (CallConclusion.DOUBTFUL, "too_old")),
        (CallRefused(CallRefusal.DRIFTED, ENTRY, ""), (CallConclusion.REFUSED, "drifted")),
    ],
)
def test_how_a_call_ended(result: CallResult, judged: tuple[CallConclusion, str]) -> None:
    assert judge_call(result) == judged


def test_every_end_has_a_reason_that_metrics_know() -> None:
    ends: list[CallResult] = [CallRefused(refusal, ENTRY, "") for refusal in CallRefusal]
    ends += [answered(end) for end in AttemptEnd]
    ends += [
        CallUnanswered(SendFailure(end, ""), "k", 1, limit)
        for end, step in NEXT_STEPS.items()
        if step in (NextStep.REPEAT, NextStep.LEAVE_OPEN)
        for limit in (None, *RepeatLimit)
    ]
    judged = [judge_call(result) for result in ends]
    assert [(outcome, reason) for outcome, reason in judged if reason not in REASONS[outcome]] == []
    assert REASONS.keys() == set(CallConclusion)


def test_the_fields_of_an_event() -> None:
    event = CallEvent(
        EventKind.CALL_ATTEMPTED,
        KEY,
        2,
        "503",
        ran_ms=40,
        origin="https://api.example",
        dialect="draft-07",
        intent="pay:42",
        outcome="later",
        pause_ms=600,
    )
    assert event.fields() == {
        "event": "call_attempted",
        "key": KEY.name_digest,
        "scope": "POST https://api.example",
        "attempt": 2,
        "ran_ms": 40,
        "detail": "503",
        "intent": "pay:42",
        "dialect": "draft-07",
        "outcome": "later",
        "pause_ms": 600,
    }
    assert "order-4711" not in str(event)


def test_events_are_equal_if_they_report_the_same() -> None:
    def ended(outcome: str, ran_ms: int) -> Event:
        return CallEvent(EventKind.CALL_ENDED, KEY, 1, ran_ms=ran_ms, origin="", dialect="", outcome=outcome)

    assert ended("answered", 1) == ended("answered", 2)
    assert ended("answered", 1) != ended("replayed", 1)
    assert len({ended("answered", 1), ended("answered", 2), ended("replayed", 1)}) == 2


def test_a_call_without_a_key_is_about_none() -> None:
    event = CallEvent(EventKind.CALL_ENDED, call_key("GET", "", ""), origin="", dialect="", outcome="answered")
    assert "key" not in event.fields()


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://API.example/pay?token=s3cret", "https://api.example"),
        ("https://me:s3cret@api.example:443/", "https://api.example"),
        ("http://api.example:8080", "http://api.example:8080"),
        ("https://[::1]:8443/x", "https://[::1]:8443"),
        ("https://api.example:99999/", ""),
    ],
)
def test_an_origin_has_nothing_else_of_the_url(url: str, origin: str) -> None:
    assert origin_of(url) == origin


def test_a_key_that_none_can_be_is_not_named_by_events() -> None:
    assert call_key("POST", "https://api.example", "\ud800") == NO_KEY
