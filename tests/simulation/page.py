"""Writes the generated parts of docs/proof.md: `python -m simulation.page`; `--check` says whether they are up to date.

A part stands between `<!-- proof: name -->` and `<!-- end -->`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from semel.core import model, protocol
from simulation.calls.scenario import FAULTS as ON_THE_WAY_OF_CALLS
from simulation.control import COUNTED, SEEDED, load
from simulation.corpus import load as load_corpus
from simulation.messages.scenario import FAULTS as ON_THE_WAY
from simulation.profiles import CALLERS, EXACTLY_ONCE, LEASES, MESSAGES, PROFILES, Profile
from simulation.scenario import MESSAGE_FAULTS
from simulation.transactions.scenario import SENT, STATEMENT_FAULTS
from spin.check import FAULTS as MODEL_FAULTS
from spin.check import MODEL

PAGE = Path(__file__).parents[2] / "docs" / "proof.md"
PART = re.compile(r"(<!-- proof: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SIDE_BY_SIDE: list[tuple[str, str, Callable[..., object]]] = [
    ("claim", "inline claim", model.claim),
    ("renew", "inline renew", model.renew),
    ("complete", "inline complete", model.complete),
    ("release", "inline release", model.release),
    ("acquire", "acquire:", protocol.acquire),
]
"""A step of the protocol, how its part of the model begins, and the code that it stands for."""


def invariants(profile: Profile) -> str:
    rows = [f"| `{name}` | {guarantee} | {says} |" for name, (guarantee, says) in profile.invariants.items()]
    return "\n".join(["| check | guarantee | what must hold |", "|---|---|---|", *rows])


def reached(profile: Profile) -> str:
    events = sorted(profile.must_reach)
    return f"{len(events)} events: " + ", ".join(f"`{event}`" for event in events) + "."


def listed(kinds: Iterable[str]) -> str:
    return ", ".join(f"`{kind}`" for kind in dict.fromkeys(kinds))


def control(profile: Profile) -> str:
    files = {fault.breaks: fault.file for fault in SEEDED[profile.name]}
    rows = []
    for found in load(profile.name):
        by = ", ".join(f"`{name}` {count}" for name, count in found.violated.items())
        rows.append(f"| {found.fault} | `{files.get(found.fault, '')}` | {found.first} | {by} |")
    head = f"| fault | in | first seed | histories of {COUNTED} that each check failed |"
    return "\n".join([head, "|---|---|---|---|", *rows])


def corpus() -> str:
    *counts, last = [str(len(load_corpus(profile))) for profile in PROFILES.values()]
    return f"The corpora have {', '.join(counts)} and {last} histories."


def ways(faults: Mapping[Any, Iterable[str]]) -> str:
    return "\n".join(f"- {where}: {listed(kinds)}" for where, kinds in faults.items())


def model_faults() -> str:
    rows = [f"| `{name}` | {says} |" for name, (_, says) in MODEL_FAULTS.items()]
    return "\n".join(["| fault | what it breaks |", "|---|---|", *rows])


def side_by_side() -> str:
    text = MODEL.read_text()
    parts = []
    for name, begins, code in SIDE_BY_SIDE:
        parts += [f"### {name}", "", "The model:", "", "```c", _promela(text, begins), "```", ""]
        where = f"semel.{code.__module__.removeprefix('semel.')}"
        parts += [f"The code, `{where}.{code.__name__}`:", "", "```python", inspect.getsource(code).rstrip(), "```", ""]
    return "\n".join(parts).rstrip()


def _promela(text: str, begins: str) -> str:
    """From the line that begins so to the end of the inline, or to the next label."""
    start = text.index(f"\n{begins}") + 1
    end = re.compile(r"\n}\n|\n\nwork:").search(text, start)
    assert end is not None
    return text[start : end.start()] + ("\n}" if end[0] == "\n}\n" else "")


PARTS: dict[str, Callable[[], str]] = {
    "invariants": partial(invariants, LEASES),
    "reached": partial(reached, LEASES),
    "message-faults": partial(listed, MESSAGE_FAULTS),
    "control": partial(control, LEASES),
    "transaction-statements": partial(listed, SENT),
    "transaction-faults": partial(listed, STATEMENT_FAULTS),
    "transaction-invariants": partial(invariants, EXACTLY_ONCE),
    "transaction-reached": partial(reached, EXACTLY_ONCE),
    "transaction-control": partial(control, EXACTLY_ONCE),
    "message-ways": partial(ways, ON_THE_WAY),
    "message-invariants": partial(invariants, MESSAGES),
    "message-reached": partial(reached, MESSAGES),
    "message-control": partial(control, MESSAGES),
    "caller-ways": partial(ways, ON_THE_WAY_OF_CALLS),
    "caller-invariants": partial(invariants, CALLERS),
    "caller-reached": partial(reached, CALLERS),
    "caller-control": partial(control, CALLERS),
    "corpus": corpus,
    "model-faults": model_faults,
    "side-by-side": side_by_side,
}


def written(page: str) -> str:
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n\n{part[3]}", page)


def main() -> int:
    old = PAGE.read_text()
    new = written(old)
    if new != old and "--check" not in sys.argv:
        PAGE.write_text(new)
    if new != old and "--check" in sys.argv:
        print("docs/proof.md is out of date: run PYTHONPATH=tests python -m simulation.page")
    return int(new != old and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
