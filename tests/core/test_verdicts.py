"""The table of verdicts, row by row."""

import pytest

from semel.core.verdicts import (
    DELAY_MS_MAX,
    FIRST_DELAY_MS,
    VERDICTS,
    Handling,
    Settling,
    Verdict,
    delay_after_ms,
    judge,
)

TABLE = [
    (Handling.HANDLED, Settling.ACKNOWLEDGE, False),
    (Handling.DUPLICATE, Settling.ACKNOWLEDGE, False),
    (Handling.IN_PROGRESS, Settling.DELIVER_AGAIN, False),
    (Handling.NOTHING_DONE, Settling.DELIVER_AGAIN, False),
    (Handling.UNCOMMITTED, Settling.DELIVER_AGAIN, False),
    (Handling.RAISED, Settling.DELIVER_AGAIN, True),
    (Handling.EXHAUSTED, Settling.DEAD_LETTER, True),
    (Handling.FINAL, Settling.DEAD_LETTER, False),
    (Handling.UNNAMED, Settling.DEAD_LETTER, False),
    (Handling.REUSED, Settling.DEAD_LETTER, False),
    (Handling.UNKNOWN, Settling.PARK, False),
    (Handling.UNREADABLE, Settling.PARK, False),
    (Handling.STORE_AWAY, Settling.STOP, False),
]


@pytest.mark.parametrize(("handling", "settling", "counted"), TABLE, ids=lambda each: getattr(each, "name", ""))
def test_a_row_of_the_table(handling: Handling, settling: Settling, counted: bool) -> None:
    verdict = judge(handling)
    assert (verdict.settling, verdict.counted, verdict.reason) == (settling, counted, handling.value)


def test_the_table_is_whole() -> None:
    assert {row[0] for row in TABLE} == set(Handling) == VERDICTS.keys()
    assert {row.settling for row in VERDICTS.values()} == set(Settling)


def test_only_what_comes_again_has_a_delay() -> None:
    assert {judge(each, attempt=3, delay_ms=7).delay_ms for each in Handling} == {0, 7}
    for handling, settling, _ in TABLE:
        assert bool(judge(handling, attempt=3).delay_ms) == (settling in (Settling.DELIVER_AGAIN, Settling.STOP))


def test_the_delay_doubles_up_to_its_limit() -> None:
    assert [delay_after_ms(attempt) for attempt in (0, 1, 2, 3, 10_000)] == [
        FIRST_DELAY_MS,
        FIRST_DELAY_MS,
        2 * FIRST_DELAY_MS,
        4 * FIRST_DELAY_MS,
        DELAY_MS_MAX,
    ]


def test_a_verdict_says_why_and_which_attempt() -> None:
    assert judge(Handling.RAISED, "the printer is on fire", attempt=2) == Verdict(
        Handling.RAISED, Settling.DELIVER_AGAIN, True, "the printer is on fire", 2 * FIRST_DELAY_MS, 2
    )
