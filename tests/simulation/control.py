"""The control: with a fault in the code the simulation must fail, or its silence without one means nothing.

`python -m simulation.control` seeds every fault, counts which invariants notice it, writes that down for the docs, and
keeps the smallest history that found it. `--only=exactly-once` seeds the faults of one simulation. With the name of a
simulation and of a fault it seeds that fault and stops at the first failing history, beginning with the one that found
it last time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mutants.fault import Fault
from simulation.calls.faults import FAULTS as CALL_FAULTS
from simulation.faults import FAULTS
from simulation.messages.faults import FAULTS as MESSAGE_FAULTS
from simulation.seeding import seed
from simulation.transactions.faults import FAULTS as TRANSACTION_FAULTS

if TYPE_CHECKING:
    from simulation.profiles import Profile

SEEDED: dict[str, list[Fault]] = {
    "leases": FAULTS,
    "exactly-once": TRANSACTION_FAULTS,
    "messages": MESSAGE_FAULTS,
    "callers": CALL_FAULTS,
}
"""The faults of each simulation, by its name. Nothing of semel is imported before one of them is seeded."""
FOUND = {
    "leases": Path(__file__).with_name("found.json"),
    "exactly-once": Path(__file__).with_name("transactions") / "found.json",
    "messages": Path(__file__).with_name("messages") / "found.json",
    "callers": Path(__file__).with_name("calls") / "found.json",
}
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


def _seed(of: str, name: str) -> Profile:
    """Seed the fault in this process, which must not have imported semel yet."""
    seed(next(fault for fault in SEEDED[of] if fault.breaks == name))
    from simulation.profiles import PROFILES

    return PROFILES[of]


def hunt(of: str, name: str) -> Found:
    """Up to the first history that fails."""
    profile = _seed(of, name)
    from simulation.runs import run_seeds

    before = next((found.first for found in load(profile.name) if found.fault == name), 0)
    tally = run_seeds((before, *range(SEEDS)), profile, until=frozenset(profile.invariants) - CRASHES)
    return Found(name, _first(tally.failed), dict(tally.violated))


def count(of: str, name: str) -> Found:
    """Every invariant that notices it. The first failing history is made smaller and joins the corpus."""
    profile = _seed(of, name)
    from simulation.runs import run_seeds

    tally = run_seeds(range(COUNTED), profile)
    if _first(tally.failed) < 0:  # it takes a rare history
        tally = run_seeds(range(COUNTED, SEEDS), profile, until=frozenset(profile.invariants) - CRASHES)
    if _first(tally.failed) >= 0:
        _keep(name, _first(tally.failed), profile)
    return Found(name, _first(tally.failed), dict(tally.violated.most_common()))


def _first(failed: dict[int, list[str]]) -> int:
    """The first seed that violated more than a crash would."""
    return min((seed for seed, names in failed.items() if set(names) - CRASHES), default=-1)


def _keep(name: str, number: int, profile: Profile) -> None:
    from simulation.corpus import Known, join
    from simulation.shrink import shrink, violated_by

    smallest = shrink(profile.draw(number), partial(violated_by, profile))
    join(Known(f"seeded: {name}", tuple(sorted(violated_by(profile, smallest))), smallest), profile)


def load(of: str = "leases") -> list[Found]:
    return [Found(**each) for each in json.loads(FOUND[of].read_text())]


def apart(of: str, name: str, *options: str) -> Found:
    """In a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "simulation.control", of, name, *options],
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
        print(json.dumps(asdict((count if "--count" in arguments else hunt)(*names))))
        return 0
    of = next((argument.removeprefix("--only=") for argument in arguments if argument.startswith("--only=")), "")
    return max([seed_all(each) for each in SEEDED if of in ("", each)])


def seed_all(of: str) -> int:
    """Every fault of one simulation, each in a process of its own."""
    every = []
    for fault in SEEDED[of]:
        found = apart(of, fault.breaks, "--count")
        every.append(found)
        by = ", ".join(f"{name} {count}" for name, count in found.violated.items())
        print(
            f"  {found.fault:<52} {f'history {found.first}' if found.first >= 0 else 'SURVIVED':<12} {by}", flush=True
        )
    alive = sum(found.first < 0 for found in every)
    print(f"{len(every)} faults seeded, " + (f"{alive} not noticed" if alive else "all of them noticed"))
    FOUND[of].write_text(json.dumps([asdict(found) for found in every], indent=1) + "\n")
    return bool(alive)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
