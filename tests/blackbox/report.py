"""What runs showed, as JSON for programs and as Markdown for the docs."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from blackbox.run import Outcome


def as_json(outcomes: Sequence[Outcome]) -> str:
    """All runs together, then each of them. Written again after every run, so that a long one can be looked at."""
    total = {
        "runs": len(outcomes),
        "seconds": round(sum(outcome.seconds for outcome in outcomes)),
        "requests": sum(outcome.requests for outcome in outcomes),
        "keys": sum(outcome.keys for outcome in outcomes),
        "effects": sum(outcome.effects for outcome in outcomes),
        "faults": dict(sorted(faults(outcomes).items())),
        "invariants": {
            name: {"checked": checked, "violations": wrong} for name, checked, wrong in invariants(outcomes)
        },
        "control": {
            "keys": sum(outcome.control_keys for outcome in outcomes),
            "duplicates": sum(outcome.control_duplicates for outcome in outcomes),
            "void_runs": sum(outcome.void for outcome in outcomes),
        },
    }
    return json.dumps({"total": total, "runs": [asdict(outcome) for outcome in outcomes]}, indent=1) + "\n"


def faults(outcomes: Sequence[Outcome]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for outcome in outcomes:
        counted.update(outcome.faults)
    return counted


def invariants(outcomes: Sequence[Outcome]) -> list[tuple[str, int, int]]:
    """Each invariant, how often it was checked, and how often it did not hold."""
    checked: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for finding in (finding for outcome in outcomes for finding in outcome.findings):
        checked[finding.invariant] += finding.checked
        wrong[finding.invariant] += finding.violations
    return [(name, checked[name], wrong[name]) for name in checked]


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    seconds = sum(outcome.seconds for outcome in outcomes)
    requests = sum(outcome.requests for outcome in outcomes)
    keys = sum(outcome.keys for outcome in outcomes)
    control = sum(outcome.control_keys for outcome in outcomes)
    duplicates = sum(outcome.control_duplicates for outcome in outcomes)
    counted = faults(outcomes)
    lines = [
        f"{len(outcomes)} run(s), {seconds:.0f} s: {requests:,} answered requests for {keys:,} keys, "
        f"{counted.total():,} faults. Without protection, under the same faults, {duplicates} of {control} keys took "
        "effect more than once.",
        "",
        "| invariant | checked | violations |",
        "|---|---|---|",
        *(f"| {name} | {checked:,} | {wrong} |" for name, checked, wrong in invariants(outcomes)),
        "",
        "| fault | times |",
        "|---|---|",
        *(f"| {kind} | {times} |" for kind, times in sorted(counted.items())),
    ]
    return "\n".join(lines)


def write_page(page: Path, outcomes: Sequence[Outcome], part: str = "black box") -> None:
    """Replace the part of the page that shows a run."""
    shown = re.compile(rf"(<!-- {part} -->\n).*?(<!-- end of {part} -->)", re.DOTALL)
    page.write_text(shown.sub(lambda found: f"{found[1]}\n{as_markdown(outcomes)}\n\n{found[2]}", page.read_text()))
