"""The two tables of the design, restated word by word, and checked through the functions that use them."""

from typing import Literal

import pytest

from core.life import ANSWER, FAILED, LEASE_MS, LIVE, OTHER, RETENTION_MS, SAME, SUCCEEDED, claim_by, lease_of
from semel.core import model
from semel.core.decisions import Expired, InFlight, Mismatch, Replay, Run, Unknown
from semel.core.effects import Complete, Emit, Release, Renew
from semel.core.policy import Policy
from semel.core.protocol import decide, settle
from semel.core.records import Acquired, Occupied, Record
from semel.core.tables import CLAIM, SETTLE, Disposal, Ending, Ruling, Situation

# record, now, take-over allowed -> what the same request and what another one is told; as in the design, top to bottom
CLAIM_ROWS = [
    pytest.param(None, 0, False, Run, Run, id="none"),
    pytest.param(LIVE, 1_000, False, Run, Run, id="in progress, past retention"),
    pytest.param(SUCCEEDED, 1_010, False, Run, Run, id="succeeded, past retention"),
    pytest.param(FAILED, 1_010, True, Run, Run, id="failed, past retention"),
    pytest.param(LIVE, 29, False, InFlight, Mismatch, id="in progress, lease live"),
    pytest.param(LIVE, 29, True, InFlight, Mismatch, id="in progress, lease live, take-over allowed"),
    pytest.param(LIVE, 30, True, Run, Mismatch, id="lapsed, take-over allowed"),
    pytest.param(LIVE, 30, False, Unknown, Mismatch, id="lapsed, at-most-once"),
    pytest.param(LIVE, 999, False, Unknown, Mismatch, id="lapsed, at-most-once, at the end of retention"),
    pytest.param(SUCCEEDED, 1_009, True, Replay, Mismatch, id="succeeded"),
    pytest.param(FAILED, 1_009, True, Replay, Mismatch, id="failed"),
]


@pytest.mark.parametrize(("old", "now_ms", "takeover", "same", "other"), CLAIM_ROWS)
def test_a_claim_finds_out(old: Record | None, now_ms: int, takeover: bool, same: type, other: type) -> None:
    for fingerprint, expected in ((SAME, same), (OTHER, other)):
        new, reply = model.claim(old, claim_by("late", fingerprint, takeover=takeover), now_ms)
        decision = decide(reply, fingerprint)
        assert type(decision) is expected
        if expected is Run:
            assert new.owner == "late"
            assert (new.lease_until_ms, new.expires_ms) == (now_ms + LEASE_MS, now_ms + RETENTION_MS)
            assert reply == Acquired(new.lease)
        else:
            assert old is not None
            assert reply == Occupied(old, now_ms)
            assert new is old, "a claim that is not granted changes nothing"


@pytest.mark.parametrize(
    ("old", "now_ms", "attempt"), [(None, 0, 1), (LIVE, 1_000, 1), (SUCCEEDED, 1_010, 1), (LIVE, 30, 2)]
)
def test_a_grant_starts_at_one_and_a_take_over_adds_one(old: Record | None, now_ms: int, attempt: int) -> None:
    new, _ = model.claim(old, claim_by("late", takeover=True), now_ms)
    assert (new.attempt, new.created_ms) == (attempt, now_ms if attempt == 1 else LIVE.created_ms)


TOMBSTONE_ROWS: list[tuple[Literal["new", "refuse"], int, str, type]] = [
    ("new", 1_009, SAME, Replay),
    ("refuse", 1_009, SAME, Replay),
    ("refuse", 1_010, SAME, Expired),
    ("refuse", 1_010, OTHER, Mismatch),
    ("refuse", 2_009, SAME, Expired),
    ("refuse", 2_010, SAME, Run),
]


@pytest.mark.parametrize(("expired", "now_ms", "fingerprint", "expected"), TOMBSTONE_ROWS)
def test_a_refused_key_is_remembered_for_one_more_retention(
    expired: Literal["new", "refuse"], now_ms: int, fingerprint: str, expected: type
) -> None:
    policy = Policy(expired=expired, retention=RETENTION_MS / 1000)
    finished, _ = model.complete(LIVE, Complete(lease_of("first"), ANSWER, policy.retention_ms, policy.refuse_ms), 10)
    _, reply = model.claim(finished, claim_by("late", fingerprint), now_ms)
    decision = decide(reply, fingerprint)
    assert type(decision) is expected


SETTLE_ROWS = [
    (Ending.SUCCEEDED, "returned an answer, status < 400", Complete),
    (Ending.FAILED, "returned an answer, status >= 400", Complete),
    (Ending.REFUSED, 'answered a status that means "refused before running"', Release),
    (Ending.RAISED, "raised", Complete),
    (Ending.NOTHING_DONE, "declared nothing_done() / raised NotExecuted", Release),
    (Ending.INTERRUPTED, "cancelled, timed out, killed, lease lost", None),
    (Ending.UNCERTAIN, "raised OutcomeUnknown, or from a function an error that is not final", Renew),
    (Ending.TOO_LARGE, "answer larger than the limit", Complete),
]


@pytest.mark.parametrize(("ending", "words", "call"), SETTLE_ROWS)
def test_after_the_work(ending: Ending, words: str, call: type | None) -> None:
    assert ending.value == words
    asked = next(settle(lease_of("first"), ending, ANSWER, Policy(), fingerprint=SAME))
    assert isinstance(asked, Emit if call is None else call), "with neither, the only thing left to do is to report it"


def test_the_tables_are_complete() -> None:
    assert set(CLAIM) == set(Situation)
    assert {ruling for row in CLAIM.values() for ruling in row} == set(Ruling)
    assert set(SETTLE) == set(Ending) == {row[0] for row in SETTLE_ROWS}
    assert set(SETTLE.values()) == set(Disposal)


def test_in_flight_says_when_the_lease_could_have_ended() -> None:
    assert decide(Occupied(LIVE, 12), SAME) == InFlight(LIVE, 18)


def test_a_store_that_did_not_grant_what_it_could_leaves_the_outcome_unknown() -> None:
    assert decide(Occupied(SUCCEEDED, 5_000), SAME) == Unknown(SUCCEEDED)
