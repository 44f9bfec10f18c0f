"""{claim, renew, complete, release} × {every fault} × {PostgreSQL, Redis} × {sync, async}.

The caller is told that the call may have happened; the store, asked by a way around the proxy, holds exactly what the
fault implies; the same call again, by the same owner, is answered with that truth.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from fire.cases import (
    ANSWER,
    LEASE_MS,
    LONGER_MS,
    OTHER_ANSWER,
    RETENTION_MS,
    Opened,
    Place,
    claim,
    granted,
    persist,
    warm_up,
)
from semel import Acquired, Key, Lease, Occupied, Record, StoreUnavailable
from semel.store import Store
from semel.testing.proxy import Fault, ProxyExchange

ACTED = {
    Fault.CUT_BEFORE: False,
    Fault.CUT_AFTER: True,
    Fault.HALF_CLOSE: True,
    Fault.GARBLE: True,
    Fault.HOLD_REPLY: True,
    Fault.HOLD_REQUEST: False,
}
"""Whether the server did what it was asked although the caller heard of a failure."""
AT_ONCE = (Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.HALF_CLOSE, Fault.GARBLE)


@dataclass(frozen=True)
class Call:
    """A call, by the lease of a claimed key, and what the store holds when it was done and when not."""

    name: str
    ask: Callable[[Store, Lease], object]
    done: Callable[[Lease, Record | None], bool]
    again: Callable[[Lease, bool, object], bool]
    """Is this reply to the same call, repeated, the truth? Asked with whether the first one was done."""


def untouched(lease: Lease, record: Record | None) -> bool:
    return record is not None and record.in_progress() and record.lease == lease


CALLS = (
    Call(
        "renew",
        lambda store, lease: store.renew(lease, lease_ms=LONGER_MS),
        lambda lease, record: record is not None and record.lease_until_ms > lease.until_ms + LEASE_MS // 2,
        lambda lease, _, reply: isinstance(reply, Lease) and reply.owner == lease.owner,
    ),
    Call(
        "complete",
        lambda store, lease: store.complete(lease, ANSWER, retention_ms=RETENTION_MS),
        lambda _, record: record is not None and record.result == ANSWER,
        lambda _, __, reply: reply is True,
    ),
    Call(
        "release",
        lambda store, lease: store.release(lease),
        lambda _, record: record is None,
        lambda _, done, reply: reply is not done,
    ),
)


def check_claim(fault: Fault, one: Opened, place: Place, key: Key) -> None:
    persist(lambda: warm_up(one.store))
    injected = place.proxy.inject(fault)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
        claim(one.store, key, "a")
    assert injected.hits == 1
    record = place.truth(key, lambda found: (found is not None) is ACTED[fault])
    assert record is None or (record.owner, record.attempt, record.in_progress()) == ("a", 1, True)
    mine = persist(lambda: claim(one.store, key, "a"))
    assert isinstance(mine, Acquired)
    assert mine.lease.attempt == 1
    assert record is None or mine.lease == record.lease
    assert isinstance(claim(place.around, key, "b"), Occupied)


def check_call(call: Call, fault: Fault, one: Opened, place: Place, key: Key) -> None:
    lease = granted(persist(lambda: claim(one.store, key, "a")))
    persist(lambda: warm_up(one.store))
    injected = place.proxy.inject(fault)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
        call.ask(one.store, lease)
    assert injected.hits == 1
    record = place.truth(key, lambda found: call.done(lease, found) is ACTED[fault])
    assert ACTED[fault] or untouched(lease, record)
    assert call.again(lease, ACTED[fault], persist(lambda: call.ask(one.store, lease)))
    assert call.done(lease, place.truth(key))
    check_aftermath(call, one.store, place, lease)


def check_aftermath(call: Call, store: Store, place: Place, lease: Lease) -> None:
    """What was lost once must not come back later as something else."""
    if call.name == "release":
        assert granted(claim(place.around, lease.key, "b")).attempt == 1
        assert persist(lambda: store.release(lease)) is False
    else:
        assert isinstance(claim(place.around, lease.key, "b"), Occupied)
        assert persist(lambda: store.complete(lease, OTHER_ANSWER, retention_ms=RETENTION_MS))
    record = place.truth(lease.key)
    assert record is not None
    expected = {"renew": ("a", OTHER_ANSWER), "complete": ("a", ANSWER), "release": ("b", None)}[call.name]
    assert (record.owner, record.result) == expected


@pytest.mark.parametrize("fault", AT_ONCE, ids=lambda fault: fault.name.lower())
def test_a_claim_that_fails(fault: Fault, one: Opened, place: Place, key: Key) -> None:
    check_claim(fault, one, place, key)


@pytest.mark.parametrize("fault", AT_ONCE, ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_call_that_fails(call: Call, fault: Fault, one: Opened, place: Place, key: Key) -> None:
    check_call(call, fault, one, place, key)


def test_a_claim_that_is_not_answered_in_time(hasty: Opened, place: Place, key: Key) -> None:
    started = time.monotonic()
    check_claim(Fault.HOLD_REPLY, hasty, place, key)
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("fault", [Fault.HOLD_REPLY, Fault.HOLD_REQUEST], ids=lambda fault: fault.name.lower())
def test_a_complete_that_is_not_answered_in_time(fault: Fault, hasty: Opened, place: Place, key: Key) -> None:
    started = time.monotonic()
    check_call(CALLS[1], fault, hasty, place, key)
    assert time.monotonic() - started < 15


def test_a_delay_is_no_failure(one: Opened, place: Place, key: Key) -> None:
    warm_up(one.store)
    place.proxy.inject(Fault.DELAY, times=None, delay_s=0.02)
    lease = granted(claim(one.store, key, "a"))
    for call in CALLS:
        assert call.again(lease, False, call.ask(one.store, lease)) is (call.name != "release")  # it has a result
    place.proxy.clear()


def test_a_connection_that_failed_is_not_used_again(one: Opened, place: Place, key: Key) -> None:
    used: list[int] = []

    def note(exchange: ProxyExchange) -> bool:
        used.append(exchange.connection)
        return True

    for fault in (Fault.HALF_CLOSE, Fault.GARBLE):
        warm_up(one.store)
        place.proxy.inject(fault, when=note)
        with pytest.raises(StoreUnavailable):
            one.store.get(key)
        place.proxy.inject(Fault.DELAY, when=note, times=None, delay_s=0)
        assert one.store.get(key) is None
        broken, *later = used
        assert broken not in later
        place.proxy.clear()
        used.clear()
