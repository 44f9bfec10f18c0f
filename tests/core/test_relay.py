"""The plan of a relay, step by step: what it asks for, and what it tells the store."""

import pytest

from core.scripted import AWAY, Step, play
from semel.core.effects import Pause
from semel.core.messages import Message
from semel.core.outbox import ERROR_MAX, DeadMessage, FailedMessage, PurgeMessages, SettleMessages, TakeMessages, Taken
from semel.core.relay import (
    PURGE_BATCH,
    PURGE_EVERY_MS,
    PURGE_PAUSE_MS,
    TOO_SLOW,
    AwaitMessages,
    Fate,
    IsStopping,
    MessageFate,
    NewOwner,
    Order,
    PublishLanes,
    ReadClock,
    RelaySettings,
    ReportPause,
    ReportRound,
    Rest,
    RoundResult,
    lanes_of,
    run_purge,
    run_relay,
    run_round,
    settlement_of,
)
from semel.core.verdicts import delay_after_ms

SETTINGS = RelaySettings(
    order="key",
    batch=10,
    lease_ms=8_000,
    timeout_ms=2_000,
    attempts_max=3,
    dead_block=True,
    keep_ms=60_000,
    poll_ms=1_000,
)
BEGAN_MS = 100_000
START_UNTIL_MS = BEGAN_MS + 8_000 - 2_000 - 1_000
TAKE = TakeMessages("me", 10, 8_000, True, True)


def taken(sequence: int, key: str | None = None, attempt: int = 1) -> Taken:
    return Taken(sequence, Message(f"id-{sequence}", "orders", b"x", key=key, attempt=attempt))


ONE, TWO, THREE = taken(1, "a"), taken(2, "b"), taken(3, "a")
LANES = ((ONE, THREE), (TWO,))
ALL_PUBLISHED = tuple(MessageFate(number, Fate.PUBLISHED) for number in (1, 3, 2))
SETTLED = SettleMessages("me", (1, 3, 2))
REPORTED = tuple((each.message, Fate.PUBLISHED, "") for each in (ONE, THREE, TWO))


def begun(*batch: Taken) -> tuple[Step, ...]:
    return (NewOwner(), "me"), (ReadClock(), BEGAN_MS), (TAKE, batch)


def published(settled: int = 3, overtaken: int = 0) -> tuple[Step, ...]:
    return (
        *begun(ONE, TWO, THREE),
        (PublishLanes(LANES, START_UNTIL_MS, 2_000), ALL_PUBLISHED),
        (SETTLED, settled),
        (ReportRound(REPORTED, overtaken), None),
    )


class TestRound:
    def test_messages_of_a_key_are_one_lane(self) -> None:
        assert play(run_round(SETTINGS), *published()) == RoundResult(3, 3)

    def test_without_messages_nothing_is_published(self) -> None:
        assert play(run_round(SETTINGS), *begun()) == RoundResult(0, 0)

    def test_a_store_that_is_away_holds_nothing(self) -> None:
        steps: tuple[Step, ...] = ((NewOwner(), "me"), (ReadClock(), BEGAN_MS), (TAKE, AWAY))
        assert play(run_round(SETTINGS), *steps) == RoundResult(0, 0, str(AWAY), "store")

    def test_what_another_relay_holds_by_then_is_reported(self) -> None:
        assert play(run_round(SETTINGS), *published(settled=1, overtaken=2)) == RoundResult(3, 3)

    def test_a_broker_that_is_away_costs_no_attempt(self) -> None:
        fates = MessageFate(1, Fate.AWAY, "gone"), MessageFate(3, Fate.UNTRIED), MessageFate(2, Fate.PUBLISHED)
        shown = (ONE.message, Fate.AWAY, "gone"), (THREE.message, Fate.UNTRIED, ""), (TWO.message, Fate.PUBLISHED, "")
        steps: tuple[Step, ...] = (
            *begun(ONE, TWO, THREE),
            (PublishLanes(LANES, START_UNTIL_MS, 2_000), fates),
            (SettleMessages("me", (2,), untried=(1, 3)), 3),
            (ReportRound(shown), None),
        )
        assert play(run_round(SETTINGS), *steps) == RoundResult(1, 3, "gone", "broker")

    def test_a_lease_that_leaves_no_time_is_said(self) -> None:
        steps: tuple[Step, ...] = (
            *begun(TWO),
            (PublishLanes(((TWO,),), START_UNTIL_MS, 2_000), (MessageFate(2, Fate.UNTRIED),)),
            (SettleMessages("me", untried=(2,)), 1),
            (ReportRound(((TWO.message, Fate.UNTRIED, ""),)), None),
        )
        assert play(run_round(SETTINGS), *steps) == RoundResult(0, 1, TOO_SLOW, "store")

    @pytest.mark.parametrize("order", ["key", "none"])
    def test_only_keys_can_be_blocked_by_dead_messages(self, order: Order) -> None:
        settings = RelaySettings(order, 10, 8_000, 2_000, 3, True, 0, 1_000)
        plan = run_round(settings)
        next(plan)
        plan.send("me")
        assert plan.send(BEGAN_MS) == TakeMessages("me", 10, 8_000, order == "key", order == "key")


class TestSettling:
    def test_it_is_tried_again_while_the_lease_lasts(self) -> None:
        """What is not settled is published once more, so a short failure of the store must not cost that."""
        *before, (settle, _), report = published()
        steps: tuple[Step, ...] = (
            *before,
            (settle, AWAY),
            (ReadClock(), BEGAN_MS + 10),
            (Pause(200), 0),
            (settle, AWAY),
            (ReadClock(), BEGAN_MS + 220),
            (Pause(400), 0),
            (settle, 0),  # the try without a reply may have settled them: the number says nothing
            report,
        )
        assert play(run_round(SETTINGS), *steps) == RoundResult(3, 3)

    def test_it_ends_with_the_lease(self) -> None:
        *before, (settle, _), report = published()
        steps: tuple[Step, ...] = (*before, (settle, AWAY), (ReadClock(), BEGAN_MS + 7_900), report)
        assert play(run_round(SETTINGS), *steps) == RoundResult(3, 3, str(AWAY), "store")

    def test_a_relay_that_stops_tries_for_a_moment(self) -> None:
        *before, (settle, _), report = published()
        tries: list[Step] = []
        for pause_ms in (200, 400, 800):
            tries += [(settle, AWAY), (ReadClock(), BEGAN_MS), (Pause(pause_ms), 0)]
        steps: tuple[Step, ...] = (*before, *tries, (settle, AWAY), (ReadClock(), BEGAN_MS), (IsStopping(), True))
        assert play(run_round(SETTINGS), *steps, report) == RoundResult(3, 3, str(AWAY), "store")

    def test_each_fate_has_its_place(self) -> None:
        batch = tuple(taken(number, attempt=number) for number in range(1, 6))
        sent = (
            MessageFate(1, Fate.FAILED, "e" * 2_000),
            MessageFate(2, Fate.POISON, "never"),
            MessageFate(3, Fate.FAILED, "no"),
            MessageFate(4, Fate.PUBLISHED),
            MessageFate(5, Fate.AWAY, "gone"),
        )
        assert settlement_of("me", batch, sent, attempts_max=3) == SettleMessages(
            "me",
            published=(4,),
            failed=(FailedMessage(1, "e" * ERROR_MAX, delay_after_ms(1)),),
            dead=(DeadMessage(2, "never"), DeadMessage(3, "given up after 3 attempts: no")),
            untried=(5,),
        )

    def test_a_message_that_was_given_up_is_reported_as_dead(self) -> None:
        last = taken(7, attempt=3)
        given_up = "given up after 3 attempts: no"
        steps: tuple[Step, ...] = (
            *begun(last),
            (PublishLanes(((last,),), START_UNTIL_MS, 2_000), (MessageFate(7, Fate.FAILED, "no"),)),
            (SettleMessages("me", dead=(DeadMessage(7, given_up),)), 1),
            (ReportRound(((last.message, Fate.POISON, given_up),)), None),
        )
        assert play(run_round(SETTINGS), *steps) == RoundResult(0, 1)


class TestRelay:
    GO: Step = (IsStopping(), False)
    STOP: Step = (IsStopping(), True)

    def test_it_goes_on_at_once_while_there_are_messages(self) -> None:
        play(run_relay(SETTINGS), self.GO, *published(), self.STOP)

    def test_it_sleeps_when_there_are_none(self) -> None:
        play(run_relay(SETTINGS), self.GO, *begun(), (AwaitMessages(1_000), None), self.STOP)

    def test_pauses_double_up_to_a_bound_and_begin_anew(self) -> None:
        failing: tuple[Step, ...] = ((NewOwner(), "me"), (ReadClock(), BEGAN_MS), (TAKE, AWAY))
        steps: list[Step] = []
        for pause_ms in (200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000):
            steps += [self.GO, *failing, self.GO, (ReportPause(str(AWAY), pause_ms), None), (Rest(pause_ms), None)]
        steps += [self.GO, *published(), self.GO, *failing, self.GO, (ReportPause(str(AWAY), 200), None)]
        play(run_relay(SETTINGS), *steps, (Rest(200), None), self.STOP)

    def test_it_pauses_while_the_broker_is_away(self) -> None:
        steps: tuple[Step, ...] = (
            *begun(ONE),
            (PublishLanes(((ONE,),), START_UNTIL_MS, 2_000), (MessageFate(1, Fate.AWAY, "gone"),)),
            (SettleMessages("me", untried=(1,)), 1),
            (ReportRound(((ONE.message, Fate.AWAY, "gone"),)), None),
        )
        paused: tuple[Step, ...] = (self.GO, (ReportPause("gone", 200), None), (Rest(200), None))
        play(run_relay(SETTINGS), self.GO, *steps, *paused, self.STOP)

    def test_a_relay_that_was_asked_to_stop_does_not_pause(self) -> None:
        failing: tuple[Step, ...] = ((NewOwner(), "me"), (ReadClock(), BEGAN_MS), (TAKE, AWAY))
        play(run_relay(SETTINGS), self.GO, *failing, self.STOP, self.STOP)


class TestPurge:
    def test_batches_follow_each_other_while_there_is_more(self) -> None:
        go, call = (IsStopping(), False), PurgeMessages(60_000, PURGE_BATCH)
        play(
            run_purge(SETTINGS),
            *(go, (call, PURGE_BATCH), (Rest(PURGE_PAUSE_MS), None)),
            *(go, (call, 3), (Rest(PURGE_EVERY_MS), None)),
            *(go, (call, AWAY), (Rest(PURGE_EVERY_MS), None)),
            (IsStopping(), True),
        )


def test_without_an_order_every_message_is_a_lane() -> None:
    assert lanes_of((TWO, ONE, THREE), "none") == ((ONE,), (TWO,), (THREE,))
    assert lanes_of((taken(2), taken(1)), "key") == ((taken(1),), (taken(2),))
