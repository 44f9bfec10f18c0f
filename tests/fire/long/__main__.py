"""`python -m fire.long --engine redis-cluster --minutes 10`: one run. Ends with 1 when a promise was broken."""

import argparse
import sys
import time
from pathlib import Path

from blackbox.report import as_json, as_markdown
from fire.long.engine import ENGINES
from fire.long.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="fire.long", description=__doc__)
    parser.add_argument("--engine", choices=list(ENGINES), default="redis-cluster")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    outcome = run(given.engine, given.minutes * 60, given.seed)
    report = Path(f"build/fire-long-{given.engine}.json")
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(as_json([outcome]))
    print(f"{given.engine}, seed {outcome.seed}: {outcome.effects} effects under {outcome.keys} keys")
    print(f"answers: {outcome.answers.get(given.engine)}")
    print(as_markdown([outcome]))
    for finding in outcome.violations:
        print(f"BROKEN: {finding.invariant}: {finding.examples[:3]}")
    print(f"\nThe whole report is in {report}.")
    return int(bool(outcome.violations))


if __name__ == "__main__":
    sys.exit(main())
