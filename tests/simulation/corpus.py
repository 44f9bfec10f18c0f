"""Histories that once found something, kept for ever, as they were after they had been made smaller.

Each is repeated under several schedules, because what it takes to fail may move when the code between its steps does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from simulation.scenario import Scenario

FILE = Path(__file__).with_name("corpus.jsonl")
SCHEDULES = 20


@dataclass(frozen=True)
class Known:
    """`found` says what it found: a bug, or a seeded fault."""

    found: str
    violated: tuple[str, ...]
    scenario: Scenario

    def schedules(self, count: int = SCHEDULES) -> Iterator[Scenario]:
        for number in range(count):
            yield replace(self.scenario, seed=self.scenario.seed + number * 1_000_003)


def load() -> list[Known]:
    return [msgspec.json.decode(line, type=Known) for line in FILE.read_bytes().splitlines()]


def save(known: Iterable[Known]) -> None:
    FILE.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in known))


def join(new: Known) -> None:
    """Add one, unless it is there."""
    known = load()
    if new.scenario not in [each.scenario for each in known]:
        save([*known, new])
