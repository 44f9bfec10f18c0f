"""The journal: what handlers say of themselves while they run, outside of every transaction. One clock for all."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class Journal:
    """For the servers. Lines are appended in one write each, so that processes do not mix theirs."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, event: str, arm: str, key: str, run: str, detail: str = "-", *, at_s: float | None = None) -> None:
        moment = time.monotonic() if at_s is None else at_s
        line = f"{moment:.6f}\t{event}\t{arm}\t{key}\t{run}\t{detail}\n"
        os.write(self._descriptor, line.encode())


@dataclass
class Ran:
    """One run of a handler. A killed process does not tell when its handlers ended."""

    run: str
    begun_s: float
    alive_s: float = 0.0
    """When its last statement that succeeded was asked for: its transaction was open then, and perhaps for longer."""
    ended_by: str = ""
    """What it raised, or that it answered."""


def read_journal(path: Path) -> tuple[Mapping[tuple[str, str], list[Ran]], Counter[str]]:
    """The runs by arm and key, and what handlers did on purpose."""
    runs: dict[str, Ran] = {}
    by_key: dict[tuple[str, str], list[Ran]] = defaultdict(list)
    faults: Counter[str] = Counter()
    for line in path.read_text().splitlines():
        moment, event, arm, key, run, detail = line.split("\t")
        match event:
            case "begun":
                runs[run] = Ran(run, float(moment))
                by_key[arm, key].append(runs[run])
            case "ended":
                runs[run].ended_by = detail
            case "wrote":
                runs[run].alive_s = float(moment)
            case _:
                faults[detail] += 1
    return by_key, faults
