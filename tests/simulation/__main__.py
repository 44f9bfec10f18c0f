"""`make sim`: the quick profile, one history with `SEMEL_SEED=n`, or with `--long` a million and a report file."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from simulation.corpus import Known, join, load
from simulation.profiles import LEASES, PROFILES, Profile
from simulation.runs import Tally, run_scenarios, run_seeds
from simulation.shrink import shrink, violated_by

QUICK = 5_000
LONG = 1_000_000
PART = 500
HANG_S = 300
"""A part that takes longer is stuck inside of one step: its stack is shown."""
BUILD = Path(__file__).parents[2] / "build"
REPORTS = {
    "leases": BUILD / "simulation.json",
    "exactly-once": BUILD / "simulation-exactly-once.json",
    "messages": BUILD / "simulation-messages.json",
    "callers": BUILD / "simulation-callers.json",
}
TOLD = (
    "operations",
    "callers",
    "messages",
    "addings",
    "intents",
    "asks",
    "process_faults",
    "message_faults",
    "store_faults",
    "lease_faults",
    "way_faults",
    "operator_faults",
)


def replay(scenario: Any, profile: Profile) -> int:
    """Tell one history."""
    print(scenario.choices)
    for name in TOLD:
        for part in getattr(scenario, name, ()):
            print(f"  {part}")
    world = profile.run(scenario, trace=True)
    print("\n".join(world.trace or ()))
    for name, detail in world.violations:
        print(f"VIOLATED {name} ({profile.invariants[name][1]}): {detail}")
    print(f"{len(world.violations)} violations, digest {world.digest()}")
    return bool(world.violations)


def part(seeds: range, profile: str) -> Tally:
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    try:
        return run_seeds(seeds, PROFILES[profile])
    finally:
        faulthandler.cancel_dump_traceback_later()


def parts(first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, PART):
        yield range(start, min(start + PART, first + count))


def many(profile: Profile, first: int, count: int, processes: int) -> Tally:
    total, started = Tally(), time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        for tally in pool.map(partial(part, profile=profile.name), parts(first, count)):
            total.add(tally)
            done_s = time.monotonic() - started
            print(
                f"\r{total.histories} histories, {total.histories / done_s:.0f} a second, {len(total.failed)} failed",
                end="",
                flush=True,
            )
    print()
    total.seconds = time.monotonic() - started
    return total


def keep_failures(tally: Tally, profile: Profile) -> None:
    """Each failing seed is made smaller and joins the corpus."""
    for seed in sorted(tally.failed)[:10]:
        smaller = shrink(profile.draw(seed), partial(violated_by, profile))
        join(Known(f"seed {seed}", tuple(tally.failed[seed]), smaller), profile)
        print(f"the smallest history of seed {seed}, which is in corpus.jsonl from now on:")
        replay(smaller, profile)


def report(tally: Tally, file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    content = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "histories": tally.histories,
        "requests": tally.requests,
        "entries": tally.entries,
        "steps": tally.steps,
        "virtual_hours": round(tally.virtual_s / 3600, 1),
        "seconds": round(tally.seconds, 1),
        "violated": tally.violated,
        "failed_seeds": tally.failed,
        "reached": dict(sorted(tally.reached.items())),
    }
    file.write_text(json.dumps(content, indent=1) + "\n")
    print(f"report: {file}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help=f"{LONG} histories, on all cores, and a report file")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, help="how many seeds")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--check", action="store_true", help="say whether all is well, and write nothing")
    parser.add_argument("--only", choices=list(PROFILES), help="one of the simulations; all by default")
    options = parser.parse_args()
    if given := os.environ.get("SEMEL_SEED"):
        profile = PROFILES[options.only or LEASES.name]
        return replay(profile.draw(int(given)), profile)
    chosen = [profile for name, profile in PROFILES.items() if options.only in (None, name)]
    return max([simulate(profile, options) for profile in chosen])


def simulate(profile: Profile, options: argparse.Namespace) -> int:
    print(f"{profile.name}:")
    count = options.count or (LONG if options.long else QUICK)
    tally = many(profile, options.first, count, options.processes)
    known = Tally() if options.check else run_corpus(profile)
    missed = sorted(profile.must_reach - set(tally.reached))
    if missed:
        print(f"never reached: {', '.join(missed)}")
    print(
        f"{len(profile.invariants)} invariants, {len(profile.must_reach)} events that must be reached, "
        f"{tally.requests} requests, {tally.entries} entries, {tally.virtual_s / 3600:.1f} hours of virtual time, "
        f"{tally.seconds:.1f} s"
    )
    for seed, names in tally.failed.items():
        way = f"SEMEL_SEED={seed} make sim ARGS=--only={profile.name}"
        print(f"seed {seed} violated {', '.join(names)}: {way} tells its history")
    if options.long:
        report(tally, REPORTS[profile.name])
    if not options.check:
        keep_failures(tally, profile)
    return int(bool(tally.failed or known.failed or missed))


def run_corpus(profile: Profile) -> Tally:
    known = run_scenarios((scenario for each in load(profile) for scenario in each.schedules()), profile)
    print(f"{known.histories} histories of the corpus, {len(known.failed)} failed")
    return known


if __name__ == "__main__":
    raise SystemExit(main())
