"""The committed list of explained differences: `explained/<suite>.toml`.

Each `[[difference]]` has `tests` (their ids; `*` stands for anything) and `why`. With `arms` or `kind` it holds for
these only.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transparency.outcomes import Difference

FOLDER = Path(__file__).parent / "explained"
KINDS = ("first", "repeat")


@dataclass(frozen=True)
class Explanation:
    tests: tuple[str, ...]
    why: str
    arms: tuple[str, ...] = ()
    kind: str | None = None

    def __post_init__(self) -> None:
        if not self.tests or not self.why.strip():
            raise ValueError("a difference needs `tests` and `why`")
        if self.kind not in (None, *KINDS):
            raise ValueError(f"`kind` is one of {', '.join(KINDS)}, not {self.kind!r}")

    def explains(self, difference: Difference) -> bool:
        return (
            (not self.arms or difference.arm in self.arms)
            and self.kind in (None, difference.kind)
            and any(matches(pattern, difference.test) for pattern in self.tests)
        )


def matches(pattern: str, test: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), test, re.DOTALL) is not None


def read_explanations(suite: str, folder: Path = FOLDER) -> list[Explanation]:
    path = folder / f"{suite}.toml"
    if not path.exists():
        return []
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    found = []
    for number, each in enumerate(given.pop("difference", []), 1):
        lists: dict[str, Any] = {name: tuple(each.pop(name)) for name in ("tests", "arms") if name in each}
        try:
            found.append(Explanation(**lists, **each))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path.name}, difference {number}: {error}") from error
    if given:
        raise ValueError(f"{path.name}: unknown {', '.join(given)}; it holds [[difference]] only")
    return found


def unexplained(differences: Iterable[Difference], explanations: Iterable[Explanation]) -> list[Difference]:
    known = list(explanations)
    return [each for each in differences if not any(explanation.explains(each) for explanation in known)]


def stale(differences: Iterable[Difference], explanations: Iterable[Explanation]) -> list[tuple[Explanation, str]]:
    """Patterns that match no difference any more."""
    seen = list(differences)
    return [
        (explanation, pattern)
        for explanation in explanations
        for pattern in explanation.tests
        if not any(explanation.explains(each) and matches(pattern, each.test) for each in seen)
    ]
