"""The plans under fire, as a front runs them: a lost reply is resolved by owner, and the work is entered once."""

from collections.abc import Callable

import pytest

from fire.cases import FINGERPRINT, Ledger, Opened, Place, execute, granted, persist, warm_up
from semel import Key, Policy, Result
from semel.core.decisions import InFlight, NotStored, Released, Replay, Run, Stored, Superseded, Undecided, Unknown
from semel.core.protocol import abandon, acquire, settle
from semel.core.tables import Ending
from semel.testing.proxy import Fault, ProxyExchange

CUTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER)
AT_MOST_ONCE, AT_LEAST_ONCE = Policy(), Policy(guarantee="at-least-once")
BRIEF = Policy(lease=0.5)
"""So that a result that cannot be stored is given up soon."""


def nth(number: int) -> Callable[[ProxyExchange], bool]:
    """The n-th exchange from now on, on whatever connection."""
    left = number

    def when(_: ProxyExchange) -> bool:
        nonlocal left
        left -= 1
        return left == 0

    return when


@pytest.mark.parametrize("number", [1, 2], ids=["claim", "complete"])
@pytest.mark.parametrize("fault", CUTS, ids=lambda fault: fault.name.lower())
def test_one_lost_exchange_changes_nothing(
    fault: Fault, number: int, one: Opened, place: Place, key: Key, ledger: Ledger
) -> None:
    warm_up(one.store)
    injected = place.proxy.inject(fault, when=nth(number))
    decision, settlement = execute(one, key, "a", AT_MOST_ONCE, ledger)
    assert injected.hits == 1
    assert isinstance(decision, Run)
    assert decision.lease.attempt == 1
    assert settlement == Stored()
    record = place.truth(key)
    assert record is not None
    assert record.result == Result("text", b"a")
    again, nothing = execute(one, key, "b", AT_LEAST_ONCE, ledger)
    assert isinstance(again, Replay)
    assert (again.result, nothing) == (record.result, None)
    assert ledger.effects() == {key.name: 1}


@pytest.mark.parametrize("fault", CUTS, ids=lambda fault: fault.name.lower())
def test_a_lost_release_is_repeated(fault: Fault, one: Opened, place: Place, key: Key) -> None:
    warm_up(one.store)
    decision = one.drive(acquire(key, FINGERPRINT, "a", AT_MOST_ONCE))
    assert isinstance(decision, Run)
    injected = place.proxy.inject(fault)
    plan = settle(decision.lease, Ending.NOTHING_DONE, None, AT_MOST_ONCE, fingerprint=FINGERPRINT)
    assert one.drive(plan) == Released()
    assert injected.hits == 1
    assert place.truth(key) is None


def test_no_work_without_a_decision(one: Opened, place: Place, key: Key, ledger: Ledger) -> None:
    """The store acts but never answers: nothing runs. When it answers again, the claim is given back, by owner."""
    warm_up(one.store)
    place.proxy.inject(Fault.CUT_AFTER, times=None)
    decision, settlement = execute(one, key, "a", AT_MOST_ONCE, ledger)
    assert isinstance(decision, Undecided)
    assert settlement is None
    assert ledger.effects() == {}
    left_behind = place.truth(key)
    assert left_behind is not None
    assert left_behind.owner == "a"
    place.proxy.clear()
    assert one.drive(abandon(left_behind.lease)) is True
    assert execute(one, key, "b", AT_MOST_ONCE, ledger)[1] == Stored()
    assert ledger.effects() == {key.name: 1}


@pytest.mark.parametrize("fault", CUTS, ids=lambda fault: fault.name.lower())
def test_an_answer_that_was_not_acknowledged_is_not_called_stored(
    fault: Fault, one: Opened, place: Place, key: Key, ledger: Ledger
) -> None:
    warm_up(one.store)
    decision = one.drive(acquire(key, FINGERPRINT, "a", BRIEF))
    assert isinstance(decision, Run)
    ledger.record(key)
    place.proxy.inject(fault, times=None)
    result = Result("text", b"a")
    settlement = one.drive(settle(decision.lease, Ending.SUCCEEDED, result, BRIEF, fingerprint=FINGERPRINT))
    assert isinstance(settlement, NotStored)
    place.proxy.clear()
    persist(lambda: warm_up(one.store))
    record = place.truth(key)
    assert record is not None
    again, _ = execute(one, key, "b", BRIEF, ledger)
    if record.result is None:
        assert isinstance(again, Unknown | InFlight)
    else:
        assert isinstance(again, Replay)
        assert again.result == result
    assert (record.result is None) is (fault is Fault.CUT_BEFORE)
    assert ledger.effects() == {key.name: 1}


def test_a_zombie_behind_a_broken_link_is_superseded(one: Opened, place: Place, key: Key, ledger: Ledger) -> None:
    """At-least-once: while the first one cannot reach the store, another takes over; only that answer is stored."""
    policy = Policy(guarantee="at-least-once", lease=0.2)
    warm_up(one.store)
    decision = one.drive(acquire(key, FINGERPRINT, "zombie", policy))
    assert isinstance(decision, Run)
    place.proxy.inject(Fault.CUT_BEFORE, times=1)
    around = place.around

    def take_over() -> None:
        claimed = around.claim(key, FINGERPRINT, owner="b", lease_ms=60_000, retention_ms=60_000, takeover=True)
        lease = granted(claimed)
        assert lease.attempt == 2
        assert around.complete(lease, Result("text", b"b"), retention_ms=60_000)

    place.truth(key, lambda record: record is not None and lapsed(place, key))
    take_over()
    plan = settle(decision.lease, Ending.SUCCEEDED, Result("text", b"zombie"), policy, fingerprint=FINGERPRINT)
    settlement = one.drive(plan)
    assert isinstance(settlement, Superseded)
    record = place.truth(key)
    assert record is not None
    assert record.result == Result("text", b"b")


def lapsed(place: Place, key: Key) -> bool:
    """By the store's own clock, which only a claim tells."""
    seen = place.around.claim(key, FINGERPRINT, owner="look", lease_ms=1, retention_ms=60_000, takeover=False)
    return seen.record.lapsed(seen.now_ms)  # type: ignore[union-attr]
