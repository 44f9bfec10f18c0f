"""After the work: complete, release or leave; never answer with a result that somebody else replaced."""

import pytest
from msgspec.structs import replace

from core.life import ANSWER, FAILED, KEY, LIVE, OTHER, REFUSAL, RETENTION_MS, SAME, SECOND, SUCCEEDED, lease_of
from core.scripted import AWAY, Step, cut_off, play, told, unanswered
from semel.core.backoff import pauses_ms
from semel.core.decisions import (
    Expired,
    Held,
    InFlight,
    Left,
    Mismatch,
    NotStored,
    Released,
    Replay,
    Settlement,
    Stored,
    Superseded,
    Undecided,
    Unknown,
    Unreadable,
)
from semel.core.effects import Claim, Complete, Doubts, Pause, Plan, Read, Release, Renew, Within
from semel.core.policy import Policy
from semel.core.protocol import abandon, look, settle
from semel.core.records import NOBODY, Acquired, Lease, Occupied, Record, Result
from semel.core.tables import Ending
from semel.errors import RecordUnreadable, StoreError, StoreMisconfigured, StoreTimeout
from semel.events import EventKind

POLICY = Policy(lease=0.2)
MINE = lease_of("first")
COMPLETE = Complete(MINE, ANSWER, POLICY.retention_ms)
RELEASE = Release(MINE)
READ_BACK = (50, 100, 200, 400)
DAY_MS = 86_400_000


def ended(ending: Ending, result: Result | None = None, *, kept_ms: int | None = None) -> Plan[Settlement]:
    return settle(MINE, ending, result, POLICY, fingerprint=SAME, kept_ms=kept_ms)


class TestComplete:
    def test_acknowledged(self) -> None:
        assert play(ended(Ending.SUCCEEDED, ANSWER), (COMPLETE, True), told(EventKind.COMPLETED, 1)) == Stored()

    def test_what_the_front_was_told_is_not_asked_for_again(self) -> None:
        plan = settle(MINE, Ending.SUCCEEDED, ANSWER, POLICY, fingerprint=SAME, first=True)
        assert play(plan, told(EventKind.COMPLETED, 1)) == Stored()

    def test_a_failure_that_the_front_met_is_tried_again(self) -> None:
        plan = settle(MINE, Ending.SUCCEEDED, ANSWER, POLICY, fingerprint=SAME, first=AWAY)
        assert play(plan, (Pause(50), None), (COMPLETE, True), told(EventKind.COMPLETED, 1)) == Stored()

    def test_a_failure_is_stored_the_same_way(self) -> None:
        complete = replace(COMPLETE, result=REFUSAL)
        assert play(ended(Ending.RAISED, REFUSAL), (complete, True), told(EventKind.COMPLETED, 1)) == Stored()

    def test_one_answer_may_be_kept_for_another_time(self) -> None:
        complete = replace(COMPLETE, retention_ms=5)
        assert play(ended(Ending.FAILED, ANSWER, kept_ms=5), (complete, True), told(EventKind.COMPLETED, 1)) == Stored()

    @pytest.mark.parametrize("ending", [Ending.SUCCEEDED, Ending.FAILED, Ending.RAISED, Ending.TOO_LARGE])
    def test_needs_a_result(self, ending: Ending) -> None:
        with pytest.raises(ValueError, match="is completed with a result, and none was given"):
            play(ended(ending))

    def test_an_ambiguous_write_is_repeated_by_its_owner(self) -> None:
        settlement = play(
            ended(Ending.SUCCEEDED, ANSWER),
            (COMPLETE, AWAY),
            (Pause(50), None),
            (COMPLETE, True),
            told(EventKind.COMPLETED, 1),
        )
        assert settlement == Stored()

    def test_every_try_to_store_a_result_has_the_whole_time_of_a_call(self) -> None:
        """The work has run, so its result is worth more than one deadline. What a caller is shown instead is not."""
        plan = ended(Ending.SUCCEEDED, ANSWER)
        failure = cut_off(5_000)
        script: list[Step] = [
            (COMPLETE, failure),
            (Pause(50), 6_000),
            (COMPLETE, False),
            (Read(KEY), cut_off(9_000)),
            (Pause(50, 9_000), 8_000),
            (Within(Read(KEY), 9_000), SUCCEEDED),
        ]
        settlement = play(plan, *script, told(EventKind.SUPERSEDED, 1))
        assert settlement == Superseded(Replay(SUCCEEDED, ANSWER))

    def test_it_is_tried_for_as_long_as_the_lease(self) -> None:
        settlement = play(
            ended(Ending.SUCCEEDED, ANSWER),
            *unanswered(COMPLETE, 50, 100),  # the third pause would end after the lease of 200 ms
            (COMPLETE, AWAY),
            (Read(KEY), AWAY),
            told(EventKind.NOT_STORED, 1, str(AWAY)),
        )
        assert settlement == NotStored(AWAY)

    @pytest.mark.parametrize(
        "error", [StoreMisconfigured("wrong password"), StoreTimeout("no answer"), StoreError("?")]
    )
    def test_whatever_the_store_fails_with_is_worth_another_try(self, error: StoreError) -> None:
        """The work has run: an operator may mend a setting before the lease is over."""
        steps: list[Step] = [(COMPLETE, error), (Pause(50), None), (COMPLETE, error), (Pause(100), None)]
        settlement = play(ended(Ending.SUCCEEDED, ANSWER), *steps, (COMPLETE, True), told(EventKind.COMPLETED, 1))
        assert settlement == Stored()

    def test_a_record_that_cannot_be_read_will_not_change(self) -> None:
        error = RecordUnreadable("format 9")
        steps: list[Step] = [(COMPLETE, error), (Read(KEY), error), told(EventKind.NOT_STORED, 1, "format 9")]
        assert play(ended(Ending.SUCCEEDED, ANSWER), *steps) == NotStored(error)

    MINE_NOW = replace(SUCCEEDED, owner="first")

    @pytest.mark.parametrize(
        ("held", "stored"),
        [
            pytest.param(MINE_NOW, True, id="it is there"),
            pytest.param(replace(MINE_NOW, owner="second"), False, id="another result"),
            pytest.param(replace(MINE_NOW, owner=NOBODY), False, id="an operator's"),
            pytest.param(LIVE, False, id="still in progress"),
            pytest.param(None, False, id="gone"),
        ],
    )
    def test_whose_every_reply_was_lost_is_looked_for_once(self, held: Record | None, stored: bool) -> None:
        steps = (*unanswered(COMPLETE, 50, 100), (COMPLETE, AWAY), (Read(KEY), held))
        event = told(EventKind.COMPLETED, 1) if stored else told(EventKind.NOT_STORED, 1, str(AWAY))
        settlement = play(ended(Ending.SUCCEEDED, ANSWER), *steps, event)
        assert settlement == (Stored() if stored else NotStored(AWAY))


class TestSuperseded:
    """The answer is what the store holds now."""

    HELD = [
        pytest.param(
            replace(SUCCEEDED, owner="second"), Replay(replace(SUCCEEDED, owner="second"), ANSWER), id="result"
        ),
        pytest.param(FAILED, Replay(FAILED, REFUSAL), id="failure"),
        pytest.param(SECOND, InFlight(SECOND, 200), id="running"),
        pytest.param(replace(SECOND, owner=NOBODY), Unknown(replace(SECOND, owner=NOBODY)), id="in nobody's hands"),
        pytest.param(None, Unknown(None), id="gone"),
        pytest.param(replace(SUCCEEDED, owner="second", result=None), Expired(), id="a tombstone"),
        pytest.param(replace(FAILED, fingerprint=OTHER), Mismatch(), id="another request's result"),
        pytest.param(replace(LIVE, fingerprint=OTHER, owner="other"), Mismatch(), id="another request"),
    ]

    @pytest.mark.parametrize(("held", "expected"), HELD)
    def test_answers_with(self, held: Record | None, expected: Held) -> None:
        settlement = play(
            ended(Ending.SUCCEEDED, ANSWER), (COMPLETE, False), (Read(KEY), held), told(EventKind.SUPERSEDED, 1)
        )
        assert settlement == Superseded(expected)

    @pytest.mark.parametrize(("held", "expected"), [row for row in HELD if row.values[0] is not None])
    @pytest.mark.parametrize("ending", [Ending.REFUSED, Ending.NOTHING_DONE])
    def test_answers_with_the_same_when_nothing_was_done(self, ending: Ending, held: Record, expected: Held) -> None:
        settlement = play(ended(ending), (RELEASE, False), (Read(KEY), held), told(EventKind.SUPERSEDED, 1))
        assert settlement == Superseded(expected)

    @pytest.mark.parametrize("ending", [Ending.REFUSED, Ending.NOTHING_DONE])
    def test_a_key_that_nobody_has_is_as_good_as_released(self, ending: Ending) -> None:
        settlement = play(ended(ending), (RELEASE, False), (Read(KEY), None), told(EventKind.RELEASED, 1))
        assert settlement == Released()

    def test_a_record_that_cannot_be_read(self) -> None:
        error = RecordUnreadable("format 9")
        settlement = play(
            ended(Ending.SUCCEEDED, ANSWER), (COMPLETE, False), (Read(KEY), error), told(EventKind.SUPERSEDED, 1)
        )
        assert settlement == Superseded(Unreadable(error))

    def test_a_store_that_went_away(self) -> None:
        settlement = play(
            ended(Ending.SUCCEEDED, ANSWER),
            (COMPLETE, False),
            *unanswered(Read(KEY), *READ_BACK),
            (Read(KEY), AWAY),
            told(EventKind.SUPERSEDED, 1),
        )
        assert settlement == Superseded(Undecided(AWAY))


class TestRelease:
    @pytest.mark.parametrize("ending", [Ending.REFUSED, Ending.NOTHING_DONE])
    def test_acknowledged(self, ending: Ending) -> None:
        assert play(ended(ending), (RELEASE, True), told(EventKind.RELEASED, 1)) == Released()

    def test_no_to_a_repeat_means_that_the_first_try_went_through(self) -> None:
        steps = (*unanswered(RELEASE, 50), (RELEASE, False), told(EventKind.RELEASED, 1))
        assert play(ended(Ending.REFUSED), *steps) == Released()

    def test_that_fails_is_reported(self) -> None:
        settlement = play(
            ended(Ending.REFUSED),
            *unanswered(RELEASE, *READ_BACK),
            (RELEASE, AWAY),
            told(EventKind.NOT_STORED, 1, str(AWAY)),
        )
        assert settlement == NotStored(AWAY)

    def test_is_tried_for_as_long_as_the_lease(self) -> None:
        """Nothing was done, and only a release says so: without it the key is unknown."""
        plan = settle(MINE, Ending.REFUSED, None, Policy(lease=3), fingerprint=SAME)
        error = StoreMisconfigured("wrong password")
        tries = [step for pause_ms in (50, 100, 200, 400, 800) for step in ((RELEASE, error), (Pause(pause_ms), None))]
        assert play(plan, *tries, (RELEASE, True), told(EventKind.RELEASED, 1)) == Released()


def test_work_that_was_interrupted_is_left_alone() -> None:
    assert play(ended(Ending.INTERRUPTED, ANSWER), told(EventKind.LEFT, 1)) == Left()


class TestUncertain:
    """The work has ended, and says that it cannot tell what it did: no repeat has to wait for its lease."""

    LAPSE = Renew(MINE, 0)

    def test_its_lease_ends_now(self) -> None:
        assert play(ended(Ending.UNCERTAIN), (self.LAPSE, MINE), told(EventKind.LEFT, 1)) == Left()

    def test_a_store_that_cannot_be_reached_lets_it_lapse_in_its_own_time(self) -> None:
        steps = ((self.LAPSE, StoreTimeout("hung")), told(EventKind.LEFT, 1))
        assert play(ended(Ending.UNCERTAIN), *steps) == Left()


class TestAbandon:
    """A claim that may have been granted to a caller who is gone."""

    NONE: frozenset[str] = frozenset()
    CERTAIN: Step = (Doubts(None), NONE)

    @pytest.mark.parametrize("reply", [True, False])
    def test_goes_back_and_is_reported_if_it_was_there(self, reply: bool) -> None:
        assert play(abandon(MINE), self.CERTAIN, (RELEASE, reply), *([told(EventKind.RELEASED, 1)] if reply else []))

    def test_of_which_the_store_is_sure_is_asked_for_once(self) -> None:
        doubts = frozenset({"a transaction"})
        assert play(abandon(MINE), (Doubts(None), doubts), (RELEASE, True), told(EventKind.RELEASED, 1))

    @pytest.mark.parametrize("reply", [True, False])
    def test_that_may_still_come_to_be_is_asked_for_until_it_cannot(self, reply: bool) -> None:
        """A "no" says only that the claim is not there yet, while what may carry it is under way."""
        both, one = frozenset({"a transaction", "a process"}), frozenset({"a process"})
        assert play(
            abandon(MINE),
            (Doubts(None), both),
            (RELEASE, False),
            (Pause(50), None),
            (Doubts(both), one),
            (Pause(100), None),
            (Doubts(one), AWAY),
            (Pause(50), None),
            (Doubts(one), one),
            (Pause(200), None),
            (Doubts(one), self.NONE),
            (RELEASE, reply),
            *([told(EventKind.RELEASED, 1)] if reply else []),
        )

    @pytest.mark.parametrize("error", [AWAY, StoreMisconfigured("wrong password")])
    def test_is_tried_for_a_day(self, error: StoreError) -> None:
        pauses = list(pauses_ms(budget_ms=DAY_MS))
        assert DAY_MS - 3_000 < sum(pauses) <= DAY_MS
        tries = [step for pause_ms in pauses for step in ((RELEASE, error), (Pause(pause_ms), None))]
        assert not play(abandon(MINE), self.CERTAIN, *tries, (RELEASE, error))

    def test_is_in_doubt_for_a_day_at_most(self) -> None:
        doubts = frozenset({"a prepared transaction"})
        asked = [
            step
            for pause_ms in pauses_ms(budget_ms=DAY_MS)
            for step in ((Pause(pause_ms), None), (Doubts(doubts), doubts))
        ]
        assert play(abandon(MINE), (Doubts(None), doubts), (RELEASE, False), *asked, (RELEASE, False))

    def test_whose_record_cannot_be_read_is_left(self) -> None:
        assert not play(abandon(MINE), self.CERTAIN, (RELEASE, RecordUnreadable("format 9")))


@pytest.mark.parametrize(
    ("budget_ms", "expected"),
    [(0, []), (49, []), (50, [50]), (149, [50]), (150, [50, 100]), (1_000, [50, 100, 200, 400])],
)
def test_pauses_double_and_never_exceed_their_budget(budget_ms: int, expected: list[int]) -> None:
    assert list(pauses_ms(budget_ms=budget_ms)) == expected


def test_pauses_have_a_longest_one() -> None:
    assert list(pauses_ms(budget_ms=1_000, first_ms=100, pause_ms_max=300)) == [100, 200, 300, 300]


class TestLook:
    """A monitor asks how an operation ended, by the store's time, without ever running it."""

    CLAIM = Claim(KEY, SAME, "monitor", POLICY.lease_ms, POLICY.retention_ms, takeover=False)

    def test_nothing_is_there(self) -> None:
        assert play(look(KEY, "monitor", POLICY), (Read(KEY), None)) is None

    def test_a_result_needs_no_time(self) -> None:
        assert play(look(KEY, "monitor", POLICY), (Read(KEY), SUCCEEDED)) == Occupied(SUCCEEDED, 0)

    def test_a_result_that_may_be_past_its_retention_does(self) -> None:
        refused = replace(SUCCEEDED, refuse_ms=RETENTION_MS)
        seen = Occupied(refused, 1_010)
        assert play(look(KEY, "monitor", POLICY), (Read(KEY), refused), (self.CLAIM, seen)) == seen

    def test_the_store_says_what_time_it_is(self) -> None:
        seen = Occupied(LIVE, 77)
        assert play(look(KEY, "monitor", POLICY), (Read(KEY), LIVE), (self.CLAIM, seen)) == seen

    def test_a_key_that_was_freed_in_the_same_moment_is_given_back(self) -> None:
        lease = Lease(KEY, "monitor", 1, 99)
        steps = ((Read(KEY), LIVE), (self.CLAIM, Acquired(lease)), (Release(lease), True))
        assert play(look(KEY, "monitor", POLICY), *steps) is None

    def test_a_record_in_an_open_transaction_shows_in_a_claim(self) -> None:
        seen = Occupied(LIVE, 5)
        claim = Claim(KEY, "printed", "monitor", POLICY.lease_ms, POLICY.retention_ms, takeover=False)
        assert play(look(KEY, "monitor", POLICY, unseen="printed"), (Read(KEY), None), (claim, seen)) == seen
