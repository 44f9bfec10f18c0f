"""Removing and expiring, as the model has it: only what was looked at, and never a live lease."""

import pytest
from msgspec.structs import replace

from core.life import FAILED, LEASE_MS, LIVE, SECOND, SUCCEEDED
from semel.core import model
from semel.core.effects import Remove
from semel.core.records import Record


def seen(record: Record, *, expire: bool = False) -> Remove:
    return Remove(record.key, record.owner, record.attempt, record.created_ms, record.completed_ms, expire)


@pytest.mark.parametrize("old", [SUCCEEDED, FAILED])
def test_a_finished_record_is_removed(old: Record) -> None:
    assert model.remove(old, seen(old), old.lease_until_ms) == (None, True)


def test_a_lease_is_respected_until_it_lapses() -> None:
    assert model.remove(LIVE, seen(LIVE), LEASE_MS - 1) == (LIVE, False)
    assert model.remove(LIVE, seen(LIVE), LEASE_MS) == (None, True)


def test_a_finished_record_expires_now_and_never_later() -> None:
    new, done = model.remove(SUCCEEDED, seen(SUCCEEDED, expire=True), 20)
    assert done
    assert new == replace(SUCCEEDED, expires_ms=20)
    assert model.remove(new, seen(SUCCEEDED, expire=True), 30) == (new, True)
    assert model.read(new, 20) is None


@pytest.mark.parametrize("now_ms", [0, LEASE_MS, 10 * LEASE_MS])
def test_what_is_not_finished_does_not_expire(now_ms: int) -> None:
    assert model.remove(LIVE, seen(LIVE, expire=True), now_ms) == (LIVE, False)


@pytest.mark.parametrize("expire", [False, True])
@pytest.mark.parametrize("change", [{"owner": "x"}, {"attempt": 9}, {"created_ms": 9}, {"completed_ms": 9}])
def test_another_record_is_left_alone(change: dict[str, int], expire: bool) -> None:
    other = replace(seen(SUCCEEDED, expire=expire), **change)
    assert model.remove(SUCCEEDED, other, 100) == (SUCCEEDED, False)


@pytest.mark.parametrize("expire", [False, True])
def test_nothing_is_removed_from_nothing(expire: bool) -> None:
    assert model.remove(None, seen(SECOND, expire=expire), 100) == (None, False)
