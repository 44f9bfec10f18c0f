"""What comes late: a reply that nobody waits for any more is nobody's, a request that arrives late is fenced."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fire.cases import (
    ANSWER,
    OTHER_ANSWER,
    RETENTION_MS,
    Opened,
    Place,
    claim,
    granted,
    persist,
    warm_up,
)
from semel import Key, Result, StoreUnavailable
from semel.testing.proxy import Fault

ONE_FACE = pytest.mark.parametrize("hasty", ["sync"], indirect=True)
"""Requests are fenced in the server, whatever face they came from."""


def test_a_late_reply_is_nobody_elses(hasty: Opened, place: Place, key: Key) -> None:
    """Both sides of the time-out: while the reply is held others are answered, and after it came they still are."""
    keys = [Key("late", key.name, str(number)) for number in range(10)]
    for number, each in enumerate(keys):
        lease = granted(claim(place.around, each, "a"))
        assert place.around.complete(lease, Result("text", b"%d" % number), retention_ms=RETENTION_MS)
    persist(lambda: warm_up(hasty.store))

    def read(number: int) -> bytes | None:
        record = persist(lambda: hasty.store.get(keys[number]))
        return record.result.payload if record is not None and record.result is not None else None

    held = place.proxy.inject(Fault.HOLD_REPLY)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(hasty.store.get, keys[0])
        assert held.wait()
        meanwhile = list(threads.map(read, range(1, 10)))
        with pytest.raises(StoreUnavailable):
            first.result()
        place.proxy.let_go()
        assert meanwhile == [b"%d" % number for number in range(1, 10)]
        assert list(threads.map(read, range(10))) == [b"%d" % number for number in range(10)]


@ONE_FACE
def test_a_late_release_takes_the_key_from_nobody(hasty: Opened, place: Place, key: Key) -> None:
    lease = granted(persist(lambda: claim(hasty.store, key, "a")))
    persist(lambda: warm_up(hasty.store))
    place.proxy.inject(Fault.HOLD_REQUEST)
    with pytest.raises(StoreUnavailable):
        hasty.store.release(lease)
    assert place.around.release(lease)
    successor = granted(claim(place.around, key, "b"))
    place.proxy.let_go()
    persist(lambda: warm_up(hasty.store))  # behind the late request, by a way as long
    assert persist(lambda: hasty.store.release(lease)) is False
    assert place.around.complete(successor, ANSWER, retention_ms=RETENTION_MS)


@ONE_FACE
def test_a_late_complete_does_not_replace_the_successors_answer(hasty: Opened, place: Place, key: Key) -> None:
    zombie = granted(persist(lambda: claim(hasty.store, key, "zombie")))
    persist(lambda: warm_up(hasty.store))
    place.proxy.inject(Fault.HOLD_REQUEST)
    with pytest.raises(StoreUnavailable):
        hasty.store.complete(zombie, OTHER_ANSWER, retention_ms=RETENTION_MS)
    assert place.around.renew(zombie, lease_ms=1) is not None  # it lapses now
    place.truth(key, lambda record: record is not None and taken_over(place, key))
    successor = granted(claim(place.around, key, "b", takeover=True))
    assert (successor.owner, successor.attempt) == ("b", 2)
    assert place.around.complete(successor, ANSWER, retention_ms=RETENTION_MS)
    place.proxy.let_go()
    persist(lambda: warm_up(hasty.store))
    assert persist(lambda: hasty.store.complete(zombie, OTHER_ANSWER, retention_ms=RETENTION_MS)) is False
    record = place.truth(key)
    assert record is not None
    assert record.result == ANSWER


def taken_over(place: Place, key: Key) -> bool:
    """Claimed by the successor, as soon as the lease has lapsed by the store's clock."""
    claim(place.around, key, "b", takeover=True)
    record = place.around.get(key)
    return record is not None and record.owner == "b"


@ONE_FACE
def test_a_claim_that_arrives_after_its_caller_gave_up_is_no_grant_for_others(
    hasty: Opened, place: Place, key: Key
) -> None:
    """Its caller was told 503 and has released, in vain. The key is held until the lease lapses, then unknown: safe."""
    persist(lambda: warm_up(hasty.store))
    place.proxy.inject(Fault.HOLD_REQUEST)
    with pytest.raises(StoreUnavailable):
        claim(hasty.store, key, "gone")
    place.proxy.let_go()
    record = place.truth(key, lambda record: record is not None)
    assert record is not None
    assert (record.owner, record.result) == ("gone", None)
    assert place.around.release(record.lease), "whoever knows the owner can still give it back"
    assert granted(claim(place.around, key, "b")).attempt == 1
