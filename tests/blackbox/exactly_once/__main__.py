"""`python -m blackbox.exactly_once`: one run. Ends with 1 when a promise was broken or the run is void.

python -m blackbox.exactly_once --short --seed 7
python -m blackbox.exactly_once --control            # seeds faults into the servers: each must be noticed
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from blackbox.__main__ import summary
from blackbox.exactly_once.run import FULL, SHORT, run, run_seeded
from blackbox.exactly_once.seeded import FAULTS
from blackbox.report import as_json, as_markdown, write_page


def main() -> int:
    parser = argparse.ArgumentParser(prog="blackbox.exactly_once", description=__doc__)
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--seconds", type=float, help="end the traffic after so long, whatever was reached")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--control", action="store_true", help="seed each fault into the servers, one after the other")
    parser.add_argument("--logs", type=Path, help="keep what the servers logged in this folder")
    parser.add_argument(
        "--report", type=Path, default=Path("build/blackbox-exactly-once.json"), help="where to write the report"
    )
    parser.add_argument("--page", type=Path, help="a page of the docs whose part about this is renewed")
    given = parser.parse_args()
    if given.control:
        return control(given.seed)
    profile = SHORT if given.short else FULL
    if given.seconds is not None:
        profile = replace(profile, seconds_least=given.seconds, seconds_most=given.seconds)
    outcome = run(profile, given.seed, logs=given.logs)
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_text(as_json([outcome]))
    if given.page is not None:
        write_page(given.page, [outcome], "black box of exactly-once")
    print(summary(outcome), as_markdown([outcome]), f"\nThe whole report is in {given.report}.", sep="\n")
    return int(outcome.void or bool(outcome.violations))


def control(seed: int) -> int:
    missed = 0
    for fault in FAULTS.values():
        outcome = run_seeded(fault, seed)
        found = {finding.invariant: finding.violations for finding in outcome.violations}
        verdict = "noticed" if fault.noticed_by in found else "NOT NOTICED"
        missed += fault.noticed_by not in found
        print(f"{verdict}: {fault.breaks} ({outcome.requests} requests, {outcome.seconds:.0f} s)", flush=True)
        for invariant, violations in found.items():
            print(f"    {violations} × {invariant}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
