"""Counting failed attempts: what a store does, as a pure function."""

import pytest

from core.life import KEY
from semel.core.attempts import ERROR_MAX, AttemptCount, CountAttempt, count_attempt, kept_error

CALL = CountAttempt(KEY, "the printer is on fire", 1_000)


def test_every_failure_counts_one() -> None:
    first = count_attempt(None, CALL, 50)
    assert first == AttemptCount(1, 1_050, "the printer is on fire")
    assert count_attempt(first, CALL, 1_049) == AttemptCount(2, 2_049, "the printer is on fire")


def test_a_count_is_forgotten_when_its_time_is_over() -> None:
    first = count_attempt(None, CALL, 50)
    assert count_attempt(first, CALL, 1_050).count == 1


def test_an_error_is_kept_in_a_form_that_every_store_takes() -> None:
    assert kept_error("a\0b\udc80" + "x" * ERROR_MAX) == "ab?" + "x" * (ERROR_MAX - 3)
    assert CountAttempt(KEY, "a\0b", 1).checked() == CountAttempt(KEY, "ab", 1)


@pytest.mark.parametrize("retention_ms", [0, -1])
def test_a_retention_without_an_end_is_refused(retention_ms: int) -> None:
    with pytest.raises(ValueError, match="retention_ms must be between"):
        CountAttempt(KEY, "", retention_ms).checked()
