"""Histories that once found something, kept for ever, as they were after they had been made smaller.

Each is repeated under several schedules, because what it takes to fail may move when the code between its steps does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from simulation.profiles import LEASES, Profile

SCHEDULES = 20


@dataclass(frozen=True)
class Known:
    """`found` says what it found: a bug, or a seeded fault."""

    found: str
    violated: tuple[str, ...]
    scenario: Any

    def schedules(self, count: int = SCHEDULES) -> Iterator[Any]:
        for number in range(count):
            yield replace(self.scenario, seed=self.scenario.seed + number * 1_000_003)


def load(profile: Profile = LEASES) -> list[Known]:
    known = [msgspec.json.decode(line, type=Known) for line in profile.corpus.read_bytes().splitlines()]
    return [replace(each, scenario=msgspec.convert(each.scenario, profile.kind)) for each in known]


def save(known: Iterable[Known], profile: Profile = LEASES) -> None:
    profile.corpus.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in known))


def join(new: Known, profile: Profile = LEASES) -> None:
    """Add one, unless it is there."""
    known = load(profile)
    if new.scenario not in [each.scenario for each in known]:
        save([*known, new], profile)
