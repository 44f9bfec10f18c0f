"""The control: with a fault in the protocol the simulation must fail, or its silence without one means nothing.

`python -m simulation.control` seeds every fault, counts which invariants notice it, writes that down for the docs, and
keeps the smallest history that found it. `python -m simulation.control NAME` seeds one and stops at the first failing
history, beginning with the one that found it last time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from simulation.faults import FAULTS
from simulation.seeding import seed

FOUND = Path(__file__).with_name("found.json")
SEEDS = 6_000
"""How many histories a fault may take before it counts as not noticed."""
COUNTED = 400
CRASHES = frozenset({"no-unexpected-exception", "no-hang"})
"""What does not count as noticed: it would say that the fault was too coarse."""


@dataclass(frozen=True)
class Found:
    """How a fault was noticed: the first seed that failed, and how many histories violated each invariant."""

    fault: str
    first: int
    violated: dict[str, int]


def hunt(name: str) -> Found:
    """Up to the first history that fails. In this process, which must not have imported semel yet."""
    seed(next(fault for fault in FAULTS if fault.breaks == name))
    from simulation.invariants import INVARIANTS
    from simulation.runs import run_seeds

    before = next((found.first for found in load() if found.fault == name), 0)
    tally = run_seeds((before, *range(SEEDS)), until=frozenset(INVARIANTS) - CRASHES)
    return Found(name, _first(tally.failed), dict(tally.violated))


def count(name: str) -> Found:
    """Every invariant that notices it. The first failing history is made smaller and joins the corpus."""
    seed(next(fault for fault in FAULTS if fault.breaks == name))
    from simulation.invariants import INVARIANTS
    from simulation.runs import run_seeds

    tally = run_seeds(range(COUNTED))
    if _first(tally.failed) < 0:  # it takes a rare history
        tally = run_seeds(range(COUNTED, SEEDS), until=frozenset(INVARIANTS) - CRASHES)
    if _first(tally.failed) >= 0:
        _keep(name, _first(tally.failed))
    return Found(name, _first(tally.failed), dict(tally.violated.most_common()))


def _first(failed: dict[int, list[str]]) -> int:
    """The first seed that violated more than a crash would."""
    return min((seed for seed, names in failed.items() if set(names) - CRASHES), default=-1)


def _keep(name: str, number: int) -> None:
    from simulation.corpus import Known, join
    from simulation.scenario import draw
    from simulation.shrink import shrink, violated_by

    smallest = shrink(draw(number))
    join(Known(f"seeded: {name}", tuple(sorted(violated_by(smallest))), smallest))


def load() -> list[Found]:
    return [Found(**each) for each in json.loads(FOUND.read_text())]


def apart(name: str, *options: str) -> Found:
    """In a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "simulation.control", name, *options],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2_000:]}")
    return Found(**json.loads(done.stdout.splitlines()[-1]))


def main(arguments: list[str]) -> int:
    names = [argument for argument in arguments if not argument.startswith("--")]
    if names:
        print(json.dumps(asdict((count if "--count" in arguments else hunt)(names[0]))))
        return 0
    every = []
    for fault in FAULTS:
        found = apart(fault.breaks, "--count")
        every.append(found)
        by = ", ".join(f"{name} {count}" for name, count in found.violated.items())
        print(
            f"  {found.fault:<52} {f'history {found.first}' if found.first >= 0 else 'SURVIVED':<12} {by}", flush=True
        )
    alive = sum(found.first < 0 for found in every)
    print(f"{len(every)} faults seeded, " + (f"{alive} not noticed" if alive else "all of them noticed"))
    FOUND.write_text(json.dumps([asdict(found) for found in every], indent=1) + "\n")
    return bool(alive)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
