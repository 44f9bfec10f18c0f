"""`make transparency`: the frameworks' own suites, bare and with every application behind semel, compared.

Exits with 1 if a difference is not explained in `explained/`, if an explanation matches nothing any more, or if a run
has shown nothing (no test passed bare, or no request was repeated).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transparency.explanations import Explanation, read_explanations, stale, unexplained
from transparency.outcomes import ARM, BARE, OUTCOMES, Difference, Outcome, compare, read
from transparency.sources import BUILD, ROOT, fetch
from transparency.suites import SUITES, WITHOUT_SUITE, Suite, missing_source

REASON_MAX = 700


def run(name: str, suite: Suite, source: Path, arm: str, timeout_s: int) -> dict[str, Outcome]:
    """One run of a suite, in a process of its own."""
    outcomes = BUILD / f"{name}-{arm}.jsonl"
    BUILD.mkdir(parents=True, exist_ok=True)
    outcomes.unlink(missing_ok=True)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTEST_ADDOPTS", "PYTHONPATH", "DJANGO_SETTINGS_MODULE")
    }
    environment |= {ARM: arm, OUTCOMES: str(outcomes), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, *suite.command, *suite.tests]
    with outcomes.with_suffix(".log").open("w") as log:
        try:
            subprocess.run(
                command, cwd=source / suite.folder, env=environment, stdout=log, stderr=log, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            print(f"{name}, {arm}: stopped after {timeout_s} s", file=sys.stderr)
    return read(outcomes)


def examine(name: str, suite: Suite, source: Path, timeout_s: int) -> bool:
    """Run a suite bare and in each arm, two at a time, print what differs, and say whether all is explained."""
    started_s = time.monotonic()
    arms = (BARE, *suite.arms)
    with ThreadPoolExecutor(2) as pool:
        runs = dict(zip(arms, pool.map(lambda arm: run(name, suite, source, arm, timeout_s), arms), strict=True))
    bare = runs.pop(BARE)
    passed = sum(outcome.result == "passed" for outcome in bare.values())
    print(f"\n==> {name}: {len(bare)} tests, {passed} pass bare, {time.monotonic() - started_s:.0f} s")
    if not passed:
        print(f"    void: no test passed; see {BUILD.relative_to(ROOT)}/{name}-{BARE}.log")
        return False
    explanations = read_explanations(name)
    differences: list[Difference] = []
    is_void = False
    for arm, wrapped in runs.items():
        found = list(compare(arm, bare, wrapped))
        repeats = sum(outcome.repeats for outcome in wrapped.values())
        new = unexplained(found, explanations)
        print(f"    {arm}: {repeats} requests repeated, {len(found)} differences, {len(found) - len(new)} explained")
        is_void |= not repeats
        differences += found
    return not show(differences, explanations) and not is_void


def show(differences: list[Difference], explanations: list[Explanation]) -> bool:
    """Print what needs a person. True if there is anything."""
    new, old = unexplained(differences, explanations), stale(differences, explanations)
    for each in new:
        reason = each.reason[:REASON_MAX].replace("\n", "\n        ")
        print(f"    NOT EXPLAINED, {each.arm}, {each.kind}: {each.test}\n        {reason}")
    for explanation, pattern in old:
        print(f"    STALE: {pattern} differs no more, but is explained: {explanation.why}")
    return bool(new or old)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make transparency", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=f"of {', '.join(SUITES)}; all if none")
    parser.add_argument("--source", action="append", default=[], metavar="NAME=FOLDER", help="a checkout to test")
    parser.add_argument("--timeout", type=int, default=3600, metavar="SECONDS", help="for each run of a suite")
    given = parser.parse_args()
    sources = dict(each.partition("=")[::2] for each in given.source)
    for name in (*given.frameworks, *sources):
        if name not in SUITES:
            parser.error(f"there is no suite {name!r}; there are {', '.join(SUITES)}")
    for name in given.frameworks:
        if missing := missing_source(name, sources):
            parser.error(f"{name}: {missing}")
    failed = []
    not_run = dict(WITHOUT_SUITE)
    for name in given.frameworks or SUITES:
        suite = SUITES[name]
        if missing := missing_source(name, sources):
            not_run[name] = missing
            continue
        source = Path(sources[name]).resolve() if name in sources else fetch(suite)
        if not examine(name, suite, source, given.timeout):
            failed.append(name)
    for name, reason in not_run.items():
        print(f"\n==> {name}: not run, {reason}")
    print(f"\ntransparency: {'FAILED: ' + ', '.join(failed) if failed else 'every difference is explained'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
