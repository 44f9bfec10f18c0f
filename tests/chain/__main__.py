"""`python -m chain`: the long form. The report is build/chain-report.json; it ends with 1 if anything is violated."""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import replace
from pathlib import Path

from chain.deployment import SERVERS
from chain.run import LONG, run

BUILD = Path(__file__).parents[2] / "build"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=sorted(SERVERS), action="append", help="by default all of them")
    parser.add_argument("--kills", type=int, default=LONG.kills)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    chosen = parser.parse_args()
    outcomes = []
    for broker in chosen.broker or sorted(SERVERS):
        outcome = run(replace(LONG, kills=chosen.kills), broker, chosen.seed, logs=BUILD / f"chain-{broker}")
        print(f"{broker}, seed {outcome.seed}: {outcome.orders} orders in {outcome.seconds} s", flush=True)
        for name, count in {**outcome.faults, **outcome.judgement.shown}.items():
            print(f"    {name}: {count}", flush=True)
        for found in (*outcome.judgement.violations, *outcome.judgement.void):
            print(f"    VIOLATED: {found}", flush=True)
        outcomes.append(outcome)
    BUILD.mkdir(exist_ok=True)
    (BUILD / "chain-report.json").write_text(json.dumps([outcome.report() for outcome in outcomes], indent=2) + "\n")
    return int(any(outcome.judgement.violations or outcome.judgement.void for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
