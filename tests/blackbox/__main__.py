"""`python -m blackbox`: one run, or run after run for hours. Ends with 1 when a promise was broken or a run is void.

python -m blackbox --hours 4 --report blackbox.json
"""

import argparse
import sys
import time
from pathlib import Path

from blackbox.report import as_json, as_markdown, write_page
from blackbox.run import QUICK, Outcome, Profile, run

LONG = Profile(requests_least=30_000, faults_least=200, seconds_least=120, seconds_most=1_200)
"""One of the runs of a long one: each begins with empty stores and an empty ledger."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="blackbox", description=__doc__)
    parser.add_argument("--hours", type=float, default=0.0, help="go on for so long; 0 is one quick run")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first run; the next ones count on")
    parser.add_argument(
        "--report", type=Path, default=Path("build/blackbox-report.json"), help="where to write the report"
    )
    parser.add_argument("--page", type=Path, help="a page of the docs whose part about the black box is renewed")
    given = parser.parse_args()
    given.report.parent.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    end = time.monotonic() + given.hours * 3600
    while not outcomes or time.monotonic() < end:
        outcome = run(LONG if given.hours else QUICK, given.seed + len(outcomes))
        outcomes.append(outcome)
        given.report.write_text(as_json(outcomes))
        print(summary(outcome), flush=True)
    if given.page is not None:
        write_page(given.page, outcomes)
    print(as_markdown(outcomes))
    print(f"\nThe whole report is in {given.report}.")
    return int(any(outcome.void or outcome.violations for outcome in outcomes))


def summary(outcome: Outcome) -> str:
    verdict = "VOID: the control shows no duplicates" if outcome.void else "all promises kept"
    if outcome.violations:
        verdict = "BROKEN: " + "; ".join(f"{one.invariant}: {one.examples[:1]}" for one in outcome.violations)
    faults = sum(outcome.faults.values())
    return f"seed {outcome.seed}: {outcome.requests} requests, {faults} faults, {outcome.seconds:.0f} s: {verdict}"


if __name__ == "__main__":
    sys.exit(main())
