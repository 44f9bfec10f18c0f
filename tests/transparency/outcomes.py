"""What became of each test of a suite: written by the plugin inside, read by the command outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

ARM, OUTCOMES = "SEMEL_TRANSPARENCY_ARM", "SEMEL_TRANSPARENCY_OUTCOMES"
BARE = "bare"


@dataclass(frozen=True)
class Outcome:
    test: str
    result: str
    """passed, failed or skipped."""
    reason: str = ""
    repeats: int = 0
    """How many requests of the test were made twice."""
    repeat_differences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Difference:
    """`kind` is "first" when a test that passes bare does not pass wrapped, "repeat" when a repeat was not a replay."""

    arm: str
    test: str
    kind: str
    reason: str


def write(path: Path, outcome: Outcome) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")


def read(path: Path) -> dict[str, Outcome]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {outcome.test: outcome for outcome in (Outcome(**json.loads(line)) for line in lines)}


def compare(arm: str, bare: dict[str, Outcome], wrapped: dict[str, Outcome]) -> Iterator[Difference]:
    for test, before in bare.items():
        after = wrapped.get(test)
        if after is None:
            yield Difference(arm, test, "first", "the test did not run")
            continue
        if before.result == "passed" and after.result != "passed":
            yield Difference(arm, test, "first", f"{after.result}: {after.reason}")
        if after.repeat_differences:
            yield Difference(arm, test, "repeat", "\n".join(after.repeat_differences))
