"""docs/proof.md says what the checks are."""

from __future__ import annotations

from simulation.page import PAGE, PART, PARTS, written


def test_the_generated_parts_are_up_to_date() -> None:
    page = PAGE.read_text()
    assert written(page) == page, "run PYTHONPATH=tests python -m simulation.page"


def test_the_page_has_every_part() -> None:
    assert {part[2] for part in PART.finditer(PAGE.read_text())} == set(PARTS)
