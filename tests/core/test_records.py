"""The values refuse what some store could not keep exactly, and answer the two questions about time."""

from datetime import timedelta
from typing import Any

import pytest

from semel.core.effects import Claim, Complete, Renew, Resolve
from semel.core.records import DURATION_MS_MAX, NOBODY, Key, Lease, Record, Result, State, read_duration

KEY = Key("tenant", "scope", "name")
LEASE = Lease(KEY, "owner", 1, 0)


def record(state: State = State.IN_PROGRESS, *, lease_until_ms: int, expires_ms: int, owner: str = "owner") -> Record:
    return Record(KEY, "1.f", state, owner, 1, 0, lease_until_ms, expires_ms)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        (("t", "s", ""), "name must not be empty"),
        (("t", "s", "a\0b"), "name must not contain NUL characters"),
        (("t", "s", "\ud800"), "name must be valid Unicode text"),
        (("t", "s", "n" * 256), "name has 256 bytes in UTF-8, the limit is 255"),
        (("t", "s", "é" * 128), "name has 256 bytes in UTF-8, the limit is 255"),
        (("t" * 256, "s", "n"), "tenant has 256 bytes in UTF-8, the limit is 255"),
        (("t", "s" * 1025, "n"), "scope has 1025 bytes in UTF-8, the limit is 1024"),
    ],
)
def test_a_key_that_cannot_be_kept_is_refused_by_the_name_of_its_part(
    parts: tuple[str, str, str], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Key(*parts)


def test_a_key_is_text() -> None:
    name: Any = b"name"
    with pytest.raises(TypeError, match="name must be text, not bytes"):
        Key("t", "s", name)


def test_a_key_is_told_without_its_name() -> None:
    """Errors and logs say `str(key)`; who debugs asks for the `repr`."""
    key = Key("shop", "POST /pay", "order-4711")
    assert str(key) == f"{key.name_digest} (tenant 'shop', scope 'POST /pay')"
    assert len(key.name_digest) == 16
    assert "order-4711" in repr(key)


def test_limits_are_inclusive_and_count_bytes() -> None:
    assert Key("", "", "é" * 127 + "n").name.endswith("n"), "255 bytes; tenant and scope may be empty"


def test_a_result_is_bytes_in_a_named_format() -> None:
    payload: Any = "text"
    with pytest.raises(TypeError, match="payload must be bytes, not str"):
        Result("format", payload)
    with pytest.raises(ValueError, match="format must not be empty"):
        Result("", b"")


def test_a_result_says_how_the_record_ends() -> None:
    assert Result("f", b"").state is State.SUCCEEDED
    assert Result("f", b"", ok=False).state is State.FAILED


def test_nobody_cannot_hold_a_lease() -> None:
    with pytest.raises(ValueError, match="owner must not be empty"):
        _ = record(lease_until_ms=0, expires_ms=0, owner=NOBODY).lease


@pytest.mark.parametrize(("now_ms", "lapsed"), [(9, False), (10, True), (11, True)])
def test_a_lease_lapses_at_its_very_end(now_ms: int, lapsed: bool) -> None:
    assert record(lease_until_ms=10, expires_ms=99).lapsed(now_ms) is lapsed


def test_a_finished_record_never_lapses() -> None:
    assert not record(State.SUCCEEDED, lease_until_ms=10, expires_ms=99).lapsed(50)


@pytest.mark.parametrize(
    ("lease_until_ms", "expires_ms", "now_ms", "past"),
    [(0, 10, 9, False), (0, 10, 10, True), (20, 10, 19, False), (20, 10, 20, True)],
)
def test_retention_ends_with_the_later_of_expiry_and_lease(
    lease_until_ms: int, expires_ms: int, now_ms: int, past: bool
) -> None:
    assert record(lease_until_ms=lease_until_ms, expires_ms=expires_ms).past_retention(now_ms) is past


@pytest.mark.parametrize("value_ms", [0, -1, DURATION_MS_MAX + 1])
def test_every_duration_has_a_bound(value_ms: int) -> None:
    with pytest.raises(ValueError, match="lease_ms must be between 1 and"):
        Claim(KEY, "1.f", "owner", value_ms, 1, False).checked()
    with pytest.raises(ValueError, match="retention_ms must be between 1 and"):
        Claim(KEY, "1.f", "owner", 1, value_ms, False).checked()
    with pytest.raises(ValueError, match="lease_ms must be between 0 and"):
        Renew(LEASE, value_ms or -1).checked()
    with pytest.raises(ValueError, match="retention_ms must be between 1 and"):
        Complete(LEASE, Result("f", b""), value_ms).checked()


def test_a_call_that_is_as_it_should_be_is_checked_and_stays_what_it_is() -> None:
    result = Result("f", b"")
    calls = (
        Claim(KEY, "1.f", "owner", 1, DURATION_MS_MAX, False),
        Renew(LEASE, 1),
        Complete(LEASE, result, 1),
        Complete(LEASE, result, 1, DURATION_MS_MAX),
        Resolve(KEY, "owner", 1, None, 1),
    )
    for call in calls:
        assert call.checked() is call
        assert call.key == KEY


def test_durations_are_whole_milliseconds() -> None:
    lease_ms: Any = 1.5
    with pytest.raises(TypeError, match="lease_ms must be an integer in milliseconds, not float"):
        Renew(LEASE, lease_ms).checked()


@pytest.mark.parametrize(("fingerprint", "owner", "field"), [("", "owner", "fingerprint"), ("1.f", "", "owner")])
def test_a_claim_names_its_request_and_its_owner(fingerprint: str, owner: str, field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must not be empty"):
        Claim(KEY, fingerprint, owner, 1, 1, False).checked()


def test_a_duration_is_a_timedelta_within_bounds() -> None:
    assert read_duration("max_age", timedelta(seconds=2)) == 2_000
    with pytest.raises(TypeError, match="max_age must be a timedelta"):
        read_duration("max_age", 2)
    for wrong in (timedelta(0), timedelta(days=999_999)):
        with pytest.raises(ValueError, match="max_age must be between"):
            read_duration("max_age", wrong)
