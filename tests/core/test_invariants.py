"""What holds in every history of a key, whatever the callers, the clock and the operators do."""

import hypothesis.strategies as st
from hypothesis import given, settings
from msgspec.structs import replace

from core.life import KEY, OTHER, SAME
from semel.core import model
from semel.core.effects import Claim, Complete, Release, Renew, Resolve
from semel.core.records import NOBODY, Acquired, Lease, Occupied, Record, Result

Call = Claim | Renew | Complete | Release | Resolve
durations = st.sampled_from([1, 5, 20])
owners = st.sampled_from(["a", "b", "c"])
leases = st.builds(Lease, st.just(KEY), owners, st.integers(1, 4), st.just(0))
results = st.builds(Result, st.just("text"), st.binary(max_size=2), st.booleans())
calls: st.SearchStrategy[Call] = st.one_of(
    st.builds(Claim, st.just(KEY), st.sampled_from([SAME, OTHER]), owners, durations, durations, st.booleans()),
    st.builds(Renew, leases, durations),
    st.builds(Complete, leases, results, durations),
    st.builds(Release, leases),
    st.builds(Resolve, st.just(KEY), owners | st.just(NOBODY), st.integers(1, 4), st.none() | results, durations),
)
histories = st.lists(st.tuples(calls, st.integers(0, 12)), max_size=40)


def step(old: Record | None, call: Call, now_ms: int) -> tuple[Record | None, object]:
    match call:
        case Claim():
            return model.claim(old, call, now_ms)
        case Renew():
            return model.renew(old, call, now_ms)
        case Complete():
            return model.complete(old, call, now_ms)
        case Release():
            return model.release(old, call, now_ms)
        case Resolve():
            return model.resolve(old, call, now_ms)


@settings(max_examples=500, deadline=None)
@given(histories)
def test_every_step_keeps_the_promises(history: list[tuple[Call, int]]) -> None:
    record: Record | None = None
    now_ms = 0
    for call, passed_ms in history:
        now_ms += passed_ms
        new, reply = step(record, call, now_ms)
        if record is not None:
            check_the_old_record_is_respected(record, new, call, now_ms)
        if new is not None:
            check_the_new_record_is_sound(new, now_ms)
        check_the_reply_is_true(call, reply, new, now_ms)
        assert step(new, call, now_ms)[0] == new or isinstance(call, Resolve), "a repeated call changes nothing more"
        record = new


def check_the_old_record_is_respected(old: Record, new: Record | None, call: Call, now_ms: int) -> None:
    if new == old or (old.past_retention(now_ms) and isinstance(call, Claim)):
        return
    assert old.in_progress(), "a finished record never changes within its retention"
    match call:
        case Claim():
            assert new is not None
            assert call.takeover
            assert old.lapsed(now_ms), "nobody takes over a live lease"
            assert (new.attempt, new.fingerprint, new.created_ms) == (old.attempt + 1, old.fingerprint, old.created_ms)
        case Resolve(attempt=attempt):
            assert old.lapsed(now_ms)
            assert (attempt, call.owner) == (old.attempt, old.owner)
        case _:
            assert call.lease.owner == old.owner, "only the owner's calls change anything"
            assert new is None or new.attempt == old.attempt


def check_the_new_record_is_sound(record: Record, now_ms: int) -> None:
    assert record.in_progress() is (record.result is None) is (record.completed_ms is None)
    assert record.result is None or record.result.state is record.state
    assert record.attempt >= 1
    assert record.owner or not record.in_progress() or record.lapsed(now_ms), "nobody's key is never in progress"


def check_the_reply_is_true(call: Call, reply: object, record: Record | None, now_ms: int) -> None:
    match call, reply:
        case Claim(), Acquired(lease):
            assert record is not None
            assert record.lease == lease
            assert (lease.owner, record.fingerprint) == (call.owner, call.fingerprint)
        case Claim(), Occupied(seen, at_ms):
            assert (seen, at_ms) == (record, now_ms)
            assert not seen.past_retention(now_ms)
        case Complete(), True:
            assert record is not None
            assert (record.owner, record.in_progress()) == (call.lease.owner, False)
        case Renew(lease_ms=lease_ms), Lease(until_ms=until_ms):
            assert until_ms == now_ms + lease_ms
        case _:
            assert reply in (None, True, False)


def careful(call: Call, record: Record | None, number: int) -> Call | None:
    """The call as at-most-once work makes it: by a fresh or the current owner, never to say that nothing was done."""
    match call:
        case Claim():
            return replace(call, owner=f"owner {number}", takeover=False, retention_ms=10_000)
        case Renew():
            return replace(call, lease=record.lease) if record and record.owner else call
        case Complete():
            lease = record.lease if record and record.owner else call.lease
            return replace(call, lease=lease, retention_ms=10_000)
        case Resolve(result=Result()):
            return replace(call, retention_ms=10_000)
        case _:
            return None


@settings(max_examples=300, deadline=None)
@given(histories)
def test_at_most_once_work_is_entered_once_within_retention(history: list[tuple[Call, int]]) -> None:
    """Counts effects: every granted claim enters the work."""
    record: Record | None = None
    now_ms, entered = 0, set[str]()
    for number, (any_call, passed_ms) in enumerate(history):
        now_ms += passed_ms
        call = careful(any_call, record, number)
        if call is not None:
            record, reply = step(record, call, now_ms)
            if isinstance(reply, Acquired):
                entered.add(reply.lease.owner)
    assert len(entered) <= 1
