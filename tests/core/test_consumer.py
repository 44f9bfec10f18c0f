"""The plan of a consumer: what it asks for, and the verdicts."""

from __future__ import annotations

from typing import Any

import pytest

from core.scripted import AWAY, Step, play
from semel.core.attempts import CountAttempt
from semel.core.consumer import (
    BUSY_DELAY_MS_MAX,
    RETENTION_MS,
    ConsumerLimits,
    NamedMessage,
    RefusedMessage,
    Tried,
    TryMessage,
    TryTogether,
    consume,
    judged_event,
)
from semel.core.effects import Emit, Pause
from semel.core.records import Key
from semel.core.verdicts import VERDICTS, Handling, Settling, Verdict, judge

ONE, TWO, THREE = (NamedMessage(Key("acme", "orders.mailer", name), "payload") for name in ("m-1", "m-2", "m-3"))
OTHER_ONE = NamedMessage(ONE.key, "another payload")
NAMELESS = RefusedMessage(Key("acme", "orders.mailer", "-"), "it has no message id")
LIMITS = ConsumerLimits(attempts_max=3)
HANDLED, DUPLICATE = judge(Handling.HANDLED), judge(Handling.DUPLICATE)


def tried(at: int, handling: Handling, reason: str = "", **more: Any) -> Step:
    return TryMessage(at), Tried(handling, reason, **more)


def judged(message: NamedMessage | RefusedMessage, verdict: Verdict) -> Step:
    return Emit(judged_event(message.key, verdict)), None


def counted(message: NamedMessage, reply: object, reason: str = "it burnt") -> Step:
    return CountAttempt(message.key, reason, RETENTION_MS), reply


@pytest.mark.parametrize("handling", [each for each in Handling if each not in (Handling.RAISED, Handling.EXHAUSTED)])
def test_what_a_try_says_is_the_verdict(handling: Handling) -> None:
    verdict = judge(handling, "because")
    assert play(consume([ONE], LIMITS), tried(0, handling, "because"), judged(ONE, verdict)) == [verdict]
    assert verdict.settling is VERDICTS[handling].settling


def test_a_failed_attempt_is_counted_and_delivered_again_later() -> None:
    for count, delay_ms in ((1, 1_000), (2, 2_000)):
        verdict = judge(Handling.RAISED, "it burnt", attempt=count, delay_ms=delay_ms)
        script = tried(0, Handling.RAISED, "it burnt"), counted(ONE, count), judged(ONE, verdict)
        assert play(consume([ONE], LIMITS), *script) == [verdict]


def test_the_last_attempt_makes_a_dead_letter() -> None:
    verdict = judge(Handling.EXHAUSTED, "it burnt", attempt=3)
    script = tried(0, Handling.RAISED, "it burnt"), counted(ONE, 3), judged(ONE, verdict)
    assert play(consume([ONE], LIMITS), *script) == [verdict]
    assert verdict.settling is Settling.DEAD_LETTER


def test_a_message_that_is_redriven_has_all_its_attempts_again() -> None:
    again = judge(Handling.RAISED, "it burnt", attempt=4, delay_ms=1_000)
    assert play(consume([ONE], LIMITS), tried(0, Handling.RAISED, "it burnt"), counted(ONE, 4), judged(ONE, again)) == [
        again
    ]
    dead = judge(Handling.EXHAUSTED, "it burnt", attempt=6)
    assert play(consume([ONE], LIMITS), tried(0, Handling.RAISED, "it burnt"), counted(ONE, 6), judged(ONE, dead)) == [
        dead
    ]


def test_an_attempt_that_cannot_be_counted_stops_the_consumer() -> None:
    reason = f"it burnt; and this attempt was not counted: {AWAY}"
    verdict = judge(Handling.STORE_AWAY, reason)
    script = tried(0, Handling.RAISED, "it burnt"), counted(ONE, AWAY), judged(ONE, verdict)
    assert play(consume([ONE], LIMITS), *script) == [verdict]


def test_a_transaction_that_was_given_up_is_tried_again_at_once_a_few_times() -> None:
    conflict = tried(0, Handling.UNCOMMITTED, "deadlock", again=True)
    script = conflict, (Pause(10), None), conflict, (Pause(20), None), tried(0, Handling.HANDLED)
    assert play(consume([ONE], LIMITS), *script, judged(ONE, HANDLED)) == [HANDLED]


def test_tries_have_a_bound_and_do_not_count_as_attempts() -> None:
    conflict = tried(0, Handling.UNCOMMITTED, "deadlock", again=True)
    verdict = judge(Handling.UNCOMMITTED, "deadlock")
    plan = consume([ONE], ConsumerLimits(tries_max=2))
    assert play(plan, conflict, (Pause(10), None), conflict, judged(ONE, verdict)) == [verdict]
    assert (verdict.settling, verdict.counted) == (Settling.DELIVER_AGAIN, False)


def test_a_handler_that_loses_its_connection_each_time_is_counted_in_the_end() -> None:
    lost = tried(0, Handling.RAISED, "it burnt", again=True)
    verdict = judge(Handling.RAISED, "it burnt", attempt=1, delay_ms=1_000)
    plan = consume([ONE], ConsumerLimits(tries_max=2))
    assert play(plan, lost, (Pause(10), None), lost, counted(ONE, 1), judged(ONE, verdict)) == [verdict]


@pytest.mark.parametrize(("asked_ms", "delay_ms"), [(0, 1), (700, 700), (900_000, BUSY_DELAY_MS_MAX), (None, 1_000)])
def test_a_message_that_is_being_handled_comes_again_within_a_bound(asked_ms: int | None, delay_ms: int) -> None:
    verdict = judge(Handling.IN_PROGRESS, delay_ms=delay_ms)
    script = tried(0, Handling.IN_PROGRESS, delay_ms=asked_ms), judged(ONE, verdict)
    assert play(consume([ONE], LIMITS), *script) == [verdict]


def test_a_message_that_comes_twice_in_a_batch_is_tried_once() -> None:
    script = tried(0, Handling.HANDLED), judged(ONE, HANDLED), judged(ONE, DUPLICATE), tried(2, Handling.HANDLED)
    assert play(consume([ONE, ONE, TWO], LIMITS), *script, judged(TWO, HANDLED)) == [HANDLED, DUPLICATE, HANDLED]


def test_a_copy_shares_the_fate_of_the_first_and_is_not_counted() -> None:
    first = judge(Handling.RAISED, "it burnt", attempt=1, delay_ms=1_000)
    plan = consume([ONE, ONE], LIMITS)
    asked = plan.send(None)
    assert asked == TryMessage(0)
    assert plan.send(Tried(Handling.RAISED, "it burnt")) == CountAttempt(ONE.key, "it burnt", RETENTION_MS)
    assert plan.send(1) == Emit(judged_event(ONE.key, first))
    plan.send(None)
    with pytest.raises(StopIteration) as stop:
        plan.send(None)
    [one, copy] = stop.value.value
    assert (one, copy.settling, copy.delay_ms, copy.counted) == (first, Settling.DELIVER_AGAIN, 1_000, False)


def test_the_same_id_with_another_payload_is_no_copy() -> None:
    reused = judge(Handling.REUSED)
    script = tried(0, Handling.HANDLED), judged(ONE, HANDLED), tried(1, Handling.REUSED), judged(OTHER_ONE, reused)
    assert play(consume([ONE, OTHER_ONE], LIMITS), *script) == [HANDLED, reused]


def test_a_delivery_without_an_id_is_never_tried() -> None:
    dead = judge(Handling.UNNAMED, "it has no message id")
    script = judged(NAMELESS, dead), tried(1, Handling.HANDLED), judged(ONE, HANDLED), judged(NAMELESS, dead)
    assert play(consume([NAMELESS, ONE, NAMELESS], LIMITS), *script) == [dead, HANDLED, dead]


def test_nothing_more_is_tried_once_the_store_is_away() -> None:
    away = judge(Handling.STORE_AWAY, "no answer")
    script = tried(0, Handling.HANDLED), judged(ONE, HANDLED), tried(1, Handling.STORE_AWAY, "no answer")
    plan = consume([ONE, TWO, THREE], LIMITS)
    assert play(plan, *script, judged(TWO, away), judged(THREE, away)) == [HANDLED, away, away]


def test_a_batch_is_one_transaction_if_nothing_fails() -> None:
    together = TryTogether((0, 2)), (Tried(Handling.HANDLED), Tried(Handling.DUPLICATE))
    events = judged(ONE, HANDLED), judged(ONE, DUPLICATE), judged(TWO, DUPLICATE)
    plan = consume([ONE, ONE, TWO], LIMITS, together=True)
    assert play(plan, together, *events) == [HANDLED, DUPLICATE, DUPLICATE]


def test_a_batch_that_failed_is_handled_one_by_one() -> None:
    final = judge(Handling.FINAL, "no such customer")
    one_by_one = tried(0, Handling.FINAL, "no such customer"), judged(ONE, final), tried(1, Handling.HANDLED)
    plan = consume([ONE, TWO], LIMITS, together=True)
    assert play(plan, (TryTogether((0, 1)), None), *one_by_one, judged(TWO, HANDLED)) == [final, HANDLED]


def test_a_single_message_needs_no_batch() -> None:
    script = tried(0, Handling.HANDLED), judged(ONE, HANDLED), judged(ONE, DUPLICATE)
    assert play(consume([ONE, ONE], LIMITS, together=True), *script) == [HANDLED, DUPLICATE]


def test_the_event_of_a_verdict_says_how_it_ended_and_why() -> None:
    event = judged_event(ONE.key, judge(Handling.EXHAUSTED, "it burnt", attempt=3))
    assert (event.handling, event.attempt, event.detail) == ("exhausted", 3, "it burnt")
    assert event.fields()["handling"] == "exhausted"
    assert judged_event(ONE.key, HANDLED).detail == ""
    assert judged_event(NAMELESS.key, judge(Handling.UNNAMED)).key_digest == ""
