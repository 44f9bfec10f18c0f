"""Many histories, one after the other: what was reached, what was violated, and by which seeds."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from simulation.profiles import LEASES, Profile

COLLECT_EVERY = 64


@dataclass
class Tally:
    """What a run has seen."""

    histories: int = 0
    steps: int = 0
    requests: int = 0
    entries: int = 0
    virtual_s: float = 0.0
    seconds: float = 0.0
    reached: Counter[str] = field(default_factory=Counter)
    violated: Counter[str] = field(default_factory=Counter)
    failed: dict[int, list[str]] = field(default_factory=dict)
    """The invariants that each failing seed violated."""

    def add(self, other: Tally) -> None:
        self.histories += other.histories
        self.steps += other.steps
        self.requests += other.requests
        self.entries += other.entries
        self.virtual_s += other.virtual_s
        self.reached += other.reached
        self.violated += other.violated
        self.failed |= other.failed


def run_seeds(seeds: Iterable[int], profile: Profile = LEASES, *, until: frozenset[str] = frozenset()) -> Tally:
    """Run the history of each seed, up to the first one that violates one of these invariants."""
    return run_scenarios(map(profile.draw, seeds), profile, until=until)


def run_scenarios(scenarios: Iterable[Any], profile: Profile = LEASES, *, until: frozenset[str] = frozenset()) -> Tally:
    tally, started = Tally(), time.monotonic()
    gc.collect()
    gc.freeze()  # histories leave cycles; looking for them among everything else takes a quarter of the time
    gc.disable()
    try:
        for scenario in scenarios:
            world = profile.run(scenario)
            tally.histories += 1
            tally.steps += world.time.steps
            tally.virtual_s += world.time.now_s
            tally.requests += len(world.oracle.requests)
            tally.entries += len(world.oracle.entries)
            tally.reached.update(world.reached)
            if names := sorted({name for name, _ in world.violations}):
                tally.violated.update(names)
                tally.failed[scenario.seed] = names
                if until.intersection(names):
                    break
            if tally.histories % COLLECT_EVERY == 0:
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    tally.seconds = time.monotonic() - started
    return tally
