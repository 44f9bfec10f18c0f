"""`semel try` says the right thing of services that are protected, unprotected, pretending, and protected by others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from semel.cli.probe import try_
from trying.services import (
    CALLERS,
    Fake,
    Shop,
    bare,
    by_asgi_idempotency_header,
    by_fastapi_idempotency,
    by_fastapi_idempotency_key,
    by_semel,
    order,
    served,
)

ALICE, BOB = (f"Authorization: {caller}" for caller in CALLERS)
ROWS = ("twice", "at once", "another body", "another identity", "without a key", "an empty key", "characters")
RIGHT, WRONG, UNCLEAR = "right", "wrong", "unclear"


def tried(url: str, *more: str, data: str = order()) -> Result:
    return CliRunner().invoke(try_, ["POST", f"{url}/orders", "-d", data, "-H", ALICE, *more])


def verdicts(result: Result) -> dict[str, str]:
    assert result.stdout, result.stderr
    found = json.loads(result.stdout)["tries"]
    return {row: next(each["verdict"] for each in found if row in each["try"]) for row in ROWS}


Service = tuple[Callable[[Shop], Any], dict[str, str], dict[str, str]]


def both(protect: Callable[[Shop], Any], *marks: str) -> Service:
    return protect, expected(*marks), expected(*marks)


def expected(*marks: str) -> dict[str, str]:
    return dict(zip(ROWS, marks, strict=True))


PROTECTED = expected(RIGHT, RIGHT, RIGHT, RIGHT, RIGHT, RIGHT, RIGHT)
NOT_AT_ALL = expected(WRONG, WRONG, WRONG, RIGHT, RIGHT, WRONG, UNCLEAR)
SERVICES: list[Service] = [
    # by answers alone, and with the effects counted
    (by_semel, PROTECTED, PROTECTED),
    (bare, NOT_AT_ALL, NOT_AT_ALL),
    (
        Fake,
        expected(RIGHT, RIGHT, WRONG, WRONG, RIGHT, WRONG, UNCLEAR),
        expected(WRONG, WRONG, WRONG, WRONG, RIGHT, WRONG, UNCLEAR),
    ),
    both(by_asgi_idempotency_header, WRONG, RIGHT, WRONG, WRONG, RIGHT, WRONG, UNCLEAR),
    both(by_fastapi_idempotency, RIGHT, RIGHT, RIGHT, WRONG, WRONG, RIGHT, RIGHT),
    both(by_fastapi_idempotency_key, RIGHT, RIGHT, RIGHT, WRONG, RIGHT, WRONG, UNCLEAR),
]


@pytest.mark.parametrize(
    ("protect", "by_answers", "by_effects"), SERVICES, ids=[protect.__name__ for protect, _, _ in SERVICES]
)
def test_what_it_says_of(
    protect: Callable[[Shop], Any], by_answers: dict[str, str], by_effects: dict[str, str]
) -> None:
    with served(shop := Shop(), protect) as url:
        answers = tried(url, "--identity", BOB, "--json")
        assert verdicts(answers) == by_answers
        counted = tried(url, "--identity", BOB, "--json", "--effects", f"{url}/count")
        assert verdicts(counted) == by_effects
    assert answers.exit_code == (1 if WRONG in by_answers.values() else 0)
    assert counted.exit_code == (1 if WRONG in by_effects.values() else 0)
    if protect is by_semel:
        # Each run: the first, one of the crowd, the other body under its own key, the other caller, two without a key.
        assert len(shop.ledger) == 2 * 6


def test_the_table_is_for_people_and_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    with served(Shop(), bare) as url:
        result = tried(url, "--identity", BOB)
    text = result.stdout
    assert result.exit_code == 1
    assert "✘ the same request twice" in text
    assert "the work ran twice: the answers name different things (/id 1 ≠ 2)" in text
    assert "20 × 201" in text
    assert "→ Claim the key with one atomic step" in text
    assert "2 right, 4 wrong, 1 unclear." in text
    assert "Count effects with --effects." in text
    for secret in ("alice-4711", "bob-0815", "A-1"):
        assert secret not in text + result.stderr


def test_answers_that_are_always_alike_tell_nothing() -> None:
    with served(Shop(numbered=False), bare) as url:
        said = verdicts(tried(url, "--identity", BOB, "--json"))
        assert (said["twice"], said["at once"], said["another identity"]) == (UNCLEAR, UNCLEAR, UNCLEAR)
        said = verdicts(tried(url, "--identity", BOB, "--json", "--effects", f"{url}/count"))
        assert (said["twice"], said["at once"], said["another identity"]) == (WRONG, WRONG, RIGHT)


def test_made_up_credentials_get_no_stored_answer() -> None:
    with served(Shop(), by_semel) as url:
        assert verdicts(tried(url, "--json"))["another identity"] == RIGHT
    with served(Shop(), by_fastapi_idempotency) as url:
        assert verdicts(tried(url, "--json"))["another identity"] == WRONG, "replayed before it was authorised"


def test_an_identity_that_is_not_authorised_tells_little() -> None:
    with served(Shop(), by_semel) as url:
        said = verdicts(tried(url, "--json", "--identity", "Authorization: Bearer nobody"))
    assert said["another identity"] == UNCLEAR


def test_a_changed_body_that_is_refused_under_any_key_tells_nothing() -> None:
    with served(Shop(), by_semel) as url:
        assert verdicts(tried(url, "--json", "--other-data", "{}"))["another body"] == UNCLEAR
        assert verdicts(tried(url, "--json", "--other-data", order("B-2")))["another body"] == RIGHT


def test_effects_from_a_command_that_counts_something_else(tmp_path: Any) -> None:
    still = tmp_path / "count"
    still.write_text("rows: 7\n")
    with served(Shop(), by_semel) as url:
        result = tried(url, "--json", "--parallel", "2", "--effects", f"cat {still}")
    assert verdicts(result)["twice"] == UNCLEAR
    assert "took no effect that --effects can see" in result.stdout
