"""Before the work: claim, repeat an ambiguous claim, wait for the first one, decide once, report once."""

import dataclasses

import pytest
from msgspec.structs import replace

from core.life import ANSWER, KEY, LIVE, OTHER, SAME, SUCCEEDED
from core.scripted import AWAY, cut_off, play, told, unanswered
from semel.core.decisions import Expired, InFlight, Mismatch, Replay, Run, Undecided, Unknown, Unreadable
from semel.core.effects import Claim, Pause, Renew, Wait, Within
from semel.core.policy import Policy
from semel.core.protocol import acquire
from semel.core.records import Acquired, Lease, Occupied
from semel.errors import RecordUnreadable, StoreMisconfigured, StoreTimeout
from semel.events import EventKind

POLICY = Policy()
WAITING = Policy(in_flight="wait", wait=0.1)
CLAIM = Claim(KEY, SAME, "mine", 30_000, 30 * 86_400_000, takeover=False)
MINE = Lease(KEY, "mine", 1, 30_000)
RENEWED = Lease(KEY, "mine", 1, 60_000)
GRANTED = Acquired(MINE)
RUNNING = Occupied(LIVE, 10)  # for another 20 ms
READ_BACK = (50, 100, 200, 400)
"""The pauses of one second of asking again."""


class TestDecision:
    def test_granted(self) -> None:
        decision = play(acquire(KEY, SAME, "mine", POLICY), (CLAIM, GRANTED), told(EventKind.CLAIMED, 1))
        assert decision == Run(MINE)

    def test_taken_over(self) -> None:
        eager = Policy(guarantee="at-least-once")
        second = replace(MINE, attempt=2)
        claim = replace(CLAIM, takeover=True)
        decision = play(acquire(KEY, SAME, "mine", eager), (claim, Acquired(second)), told(EventKind.TAKEN_OVER, 2))
        assert decision == Run(second)

    def test_replayed(self) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", POLICY), (CLAIM, Occupied(SUCCEEDED, 20)), told(EventKind.REPLAYED, 1)
        )
        assert decision == Replay(SUCCEEDED, ANSWER)

    def test_in_flight(self) -> None:
        decision = play(acquire(KEY, SAME, "mine", POLICY), (CLAIM, RUNNING), told(EventKind.IN_FLIGHT, 1))
        assert decision == InFlight(LIVE, 20)

    def test_unknown(self) -> None:
        decision = play(acquire(KEY, SAME, "mine", POLICY), (CLAIM, Occupied(LIVE, 30)), told(EventKind.UNKNOWN))
        assert decision == Unknown(LIVE)

    def test_another_request(self) -> None:
        claim = replace(CLAIM, fingerprint=OTHER)
        assert play(acquire(KEY, OTHER, "mine", POLICY), (claim, RUNNING), told(EventKind.MISMATCHED)) == Mismatch()

    def test_expired(self) -> None:
        policy = Policy(expired="refuse", retention=1, lease=1)
        claim = Claim(KEY, SAME, "mine", 1_000, 30 * 86_400_000, takeover=False)
        kept = replace(SUCCEEDED, refuse_ms=1_000)
        assert (
            play(acquire(KEY, SAME, "mine", policy), (claim, Occupied(kept, 1_010)), told(EventKind.EXPIRED))
            == Expired()
        )

    def test_a_record_that_cannot_be_read_is_never_treated_as_absent(self) -> None:
        error = RecordUnreadable("format 9")
        decision = play(
            acquire(KEY, SAME, "mine", POLICY), (CLAIM, error), told(EventKind.UNREADABLE, detail="format 9")
        )
        assert decision == Unreadable(error)


class TestFirstReply:
    """The front asks for the claim itself, and hands the plan what became of it."""

    @pytest.mark.parametrize(
        ("reply", "kind", "attempt", "decision"),
        [
            (GRANTED, EventKind.CLAIMED, 1, Run(MINE)),
            (Occupied(SUCCEEDED, 20), EventKind.REPLAYED, 1, Replay(SUCCEEDED, ANSWER)),
            (RUNNING, EventKind.IN_FLIGHT, 1, InFlight(LIVE, 20)),
        ],
    )
    def test_the_claim_is_not_asked_for_again(
        self, reply: Acquired | Occupied, kind: EventKind, attempt: int, decision: object
    ) -> None:
        assert play(acquire(KEY, SAME, "mine", POLICY, first=reply), told(kind, attempt)) == decision

    def test_a_failure_is_read_back(self) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", POLICY, first=AWAY),
            (Pause(50), None),
            (CLAIM, GRANTED),
            (Renew(MINE, 30_000), RENEWED),
            told(EventKind.CLAIMED, 1),
        )
        assert decision == Run(RENEWED)

    def test_after_a_wait_the_claim_is_asked_for(self) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", WAITING, first=RUNNING),
            (Pause(0), 0),
            (Wait(KEY, LIVE.owner, 20), 20),
            (CLAIM, Occupied(SUCCEEDED, 20)),
            told(EventKind.REPLAYED, 1),
        )
        assert decision == Replay(SUCCEEDED, ANSWER)


class TestStoreAway:
    def test_an_ambiguous_claim_is_repeated_with_the_same_owner(self) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", POLICY),
            (CLAIM, AWAY),
            (Pause(50), None),
            (CLAIM, GRANTED),
            (Renew(MINE, POLICY.lease_ms), RENEWED),
            told(EventKind.CLAIMED, 1),
        )
        assert decision == Run(RENEWED), "work that begins late begins with a whole lease"

    def test_a_key_that_was_taken_over_while_its_claim_was_read_back_is_claimed_again(self) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", POLICY),
            (CLAIM, AWAY),
            (Pause(50), None),
            (CLAIM, GRANTED),
            (Renew(MINE, POLICY.lease_ms), None),
            (CLAIM, Occupied(SUCCEEDED, 17)),
            told(EventKind.REPLAYED, 1),
        )
        assert decision == Replay(SUCCEEDED, ANSWER)

    def test_what_the_tries_take_counts(self) -> None:
        """A store that hangs until its time-out is asked twice, not for as often as the pauses alone would allow."""
        decision = play(
            acquire(KEY, SAME, "mine", POLICY),
            (CLAIM, AWAY),
            (Pause(50), 5_050),
            (CLAIM, AWAY),
            (Pause(100), 10_150),
            told(EventKind.STORE_FAILED, detail=str(AWAY)),
        )
        assert decision == Undecided(AWAY)

    @pytest.mark.parametrize("before", [(), (50, 100)], ids=["at once", "later"])
    def test_who_waited_for_a_whole_time_out_does_not_wait_for_another(self, before: tuple[int, ...]) -> None:
        late = StoreTimeout("no answer within 5 s")
        decision = play(
            acquire(KEY, SAME, "mine", POLICY),
            *unanswered(CLAIM, *before),
            (CLAIM, late),
            told(EventKind.STORE_FAILED, detail=str(late)),
        )
        assert decision == Undecided(late)

    def test_nor_for_the_renewal_of_what_was_read_back(self) -> None:
        late = StoreTimeout("no answer within 5 s")
        decision = play(
            acquire(KEY, SAME, "mine", POLICY),
            *unanswered(CLAIM, 50),
            (CLAIM, GRANTED),
            (Renew(MINE, POLICY.lease_ms), late),
            told(EventKind.STORE_FAILED, detail=str(late)),
        )
        assert decision == Undecided(late)

    def test_a_claim_is_read_back_in_what_is_left_of_its_time(self) -> None:
        late = StoreTimeout("no answer within 5 s")
        decision = play(
            acquire(KEY, SAME, "mine", POLICY),
            (CLAIM, cut_off(5_000)),
            (Pause(50, 5_000), 4_050),
            (Within(CLAIM, 5_000), cut_off(5_000)),
            (Pause(100, 5_000), 4_300),
            (Within(CLAIM, 5_000), late),
            told(EventKind.STORE_FAILED, detail=str(late)),
        )
        assert decision == Undecided(late)

    def test_a_claim_whose_time_is_used_up_is_not_read_back(self) -> None:
        failure = cut_off(5_000)
        decision = play(
            acquire(KEY, SAME, "mine", POLICY),
            (CLAIM, failure),
            (Pause(50, 5_000), 5_000),
            told(EventKind.STORE_FAILED, detail=str(failure)),
        )
        assert decision == Undecided(failure)

    def test_the_renewal_of_what_was_read_back_has_the_same_deadline(self) -> None:
        failure, renew = cut_off(5_000), Within(Renew(MINE, POLICY.lease_ms), 5_000)
        decision = play(
            acquire(KEY, SAME, "mine", POLICY),
            (CLAIM, failure),
            (Pause(50, 5_000), 4_050),
            (Within(CLAIM, 5_000), GRANTED),
            (renew, failure),
            (Pause(50, 5_000), 4_500),
            (renew, None),
            (Within(CLAIM, 5_000), Occupied(SUCCEEDED, 17)),
            told(EventKind.REPLAYED, 1),
        )
        assert decision == Replay(SUCCEEDED, ANSWER)

    def test_who_waited_for_another_one_asks_with_the_whole_time(self) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", WAITING),
            (CLAIM, cut_off(5_000)),
            (Pause(50, 5_000), 50),
            (Within(CLAIM, 5_000), RUNNING),
            (CLOCK, 60),
            (Wait(KEY, "first", 20), 7),
            (CLAIM, Occupied(SUCCEEDED, 17)),
            told(EventKind.REPLAYED, 1),
        )
        assert decision == Replay(SUCCEEDED, ANSWER)

    def test_nothing_runs_when_the_store_cannot_decide_within_the_bound(self) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", POLICY),
            *unanswered(CLAIM, *READ_BACK),
            (CLAIM, AWAY),
            told(EventKind.STORE_FAILED, detail=str(AWAY)),
        )
        assert decision == Undecided(AWAY)

    def test_a_misconfigured_store_is_not_asked_again(self) -> None:
        error = StoreMisconfigured("maxmemory-policy is allkeys-lru")
        decision = play(
            acquire(KEY, SAME, "mine", POLICY), (CLAIM, error), told(EventKind.STORE_FAILED, detail=str(error))
        )
        assert decision == Undecided(error)


CLOCK = Pause(0)
"""A look at the driver's clock: the plan waits for nothing."""


class TestWaiting:
    def test_woken_by_the_result(self) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", dataclasses.replace(WAITING, lease=30)),
            (CLAIM, RUNNING),
            (CLOCK, 0),
            (Wait(KEY, "first", 20), 7),
            (CLAIM, Occupied(SUCCEEDED, 17)),
            told(EventKind.REPLAYED, 1),
        )
        assert decision == Replay(SUCCEEDED, ANSWER)

    def test_a_released_key_goes_to_the_one_who_waited(self) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", WAITING),
            (CLAIM, RUNNING),
            (CLOCK, 0),
            (Wait(KEY, "first", 20), 7),
            (CLAIM, GRANTED),
            told(EventKind.CLAIMED, 1),
        )
        assert decision == Run(MINE)

    def test_the_wait_is_bounded_and_no_wait_is_longer_than_the_rest(self) -> None:
        long = replace(LIVE, lease_until_ms=1_000)
        decision = play(
            acquire(KEY, SAME, "mine", WAITING),
            (CLAIM, Occupied(long, 0)),
            (CLOCK, 1_000),
            (Wait(KEY, "first", 100), 60),
            (CLAIM, Occupied(long, 60)),
            (CLOCK, 1_060),
            (Wait(KEY, "first", 40), 40),
            (CLAIM, Occupied(long, 101)),
            (CLOCK, 1_101),
            told(EventKind.IN_FLIGHT, 1),
        )
        assert decision == InFlight(long, 899)

    def test_waking_at_once_again_and_again_uses_the_wait_up(self) -> None:
        long = Occupied(replace(LIVE, lease_until_ms=1_000), 0)
        waits = [step for left in (3, 2, 1) for step in ((CLAIM, long), (CLOCK, 0), (Wait(KEY, "first", left), 0))]
        plan = acquire(KEY, SAME, "mine", dataclasses.replace(WAITING, wait=0.003))
        assert isinstance(play(plan, *waits, (CLAIM, long), told(EventKind.IN_FLIGHT, 1)), InFlight)

    def test_a_lapse_meanwhile_is_unknown_under_at_most_once(self) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", WAITING),
            (CLAIM, RUNNING),
            (CLOCK, 0),
            (Wait(KEY, "first", 20), 20),
            (CLAIM, Occupied(LIVE, 30)),
            told(EventKind.UNKNOWN),
        )
        assert decision == Unknown(LIVE)

    def test_a_lapse_meanwhile_is_a_take_over_under_at_least_once(self) -> None:
        claim, second = replace(CLAIM, takeover=True), Lease(KEY, "mine", 2, 60)
        decision = play(
            acquire(KEY, SAME, "mine", dataclasses.replace(WAITING, guarantee="at-least-once")),
            (claim, RUNNING),
            (CLOCK, 0),
            (Wait(KEY, "first", 20), 20),
            (claim, Acquired(second)),
            told(EventKind.TAKEN_OVER, 2),
        )
        assert decision == Run(second)

    def test_the_next_holder_is_waited_for_by_its_own_name(self) -> None:
        second = replace(LIVE, owner="second", attempt=2, lease_until_ms=60)
        decision = play(
            acquire(KEY, SAME, "mine", WAITING),
            (CLAIM, RUNNING),
            (CLOCK, 0),
            (Wait(KEY, "first", 20), 20),
            (CLAIM, Occupied(second, 30)),
            (CLOCK, 20),
            (Wait(KEY, "second", 30), 5),
            (CLAIM, Occupied(SUCCEEDED, 35)),
            told(EventKind.REPLAYED, 1),
        )
        assert isinstance(decision, Replay)

    @pytest.mark.parametrize("error", [AWAY, StoreMisconfigured("LISTEN is not possible here")])
    def test_a_store_that_cannot_be_watched_is_asked_once_more(self, error: Exception) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", WAITING),
            (CLAIM, RUNNING),
            (CLOCK, 0),
            (Wait(KEY, "first", 20), error),
            (CLAIM, RUNNING),
            told(EventKind.IN_FLIGHT, 1),
        )
        assert decision == InFlight(LIVE, 20)

    def test_a_store_that_goes_away_meanwhile_cannot_decide(self) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", WAITING),
            (CLAIM, RUNNING),
            (CLOCK, 0),
            (Wait(KEY, "first", 20), 20),
            *unanswered(CLAIM, *READ_BACK),
            (CLAIM, AWAY),
            told(EventKind.STORE_FAILED, detail=str(AWAY)),
        )
        assert decision == Undecided(AWAY)

    @pytest.mark.parametrize(("wait_ms", "waited"), [(5, 5), (50, 20)])
    def test_one_request_may_wait_for_another_time_than_the_policy_says(self, wait_ms: int, waited: int) -> None:
        decision = play(
            acquire(KEY, SAME, "mine", POLICY, wait_ms=wait_ms),
            (CLAIM, RUNNING),
            (CLOCK, 0),
            (Wait(KEY, "first", waited), waited),
            (CLAIM, RUNNING),
            (CLOCK, wait_ms),
            told(EventKind.IN_FLIGHT, 1),
        )
        assert decision == InFlight(LIVE, 20)

    def test_one_request_may_not_wait_at_all(self) -> None:
        plan = acquire(KEY, SAME, "mine", WAITING, wait_ms=0)
        assert isinstance(play(plan, (CLAIM, RUNNING), told(EventKind.IN_FLIGHT, 1)), InFlight)

    def test_what_the_claims_take_is_part_of_the_wait(self) -> None:
        long = Occupied(replace(LIVE, lease_until_ms=1_000), 0)
        decision = play(
            acquire(KEY, SAME, "mine", WAITING),
            (CLAIM, long),
            (CLOCK, 0),
            (Wait(KEY, "first", 100), 1),
            (CLAIM, long),
            (CLOCK, 95),
            (Wait(KEY, "first", 5), 5),
            (CLAIM, long),
            (CLOCK, 190),
            told(EventKind.IN_FLIGHT, 1),
        )
        assert isinstance(decision, InFlight)

    @pytest.mark.parametrize("in_flight", ["reject", "accept"])
    def test_nobody_else_waits(self, in_flight: str) -> None:
        policy = Policy(in_flight="reject" if in_flight == "reject" else "accept")
        assert isinstance(
            play(acquire(KEY, SAME, "mine", policy), (CLAIM, RUNNING), told(EventKind.IN_FLIGHT, 1)), InFlight
        )
