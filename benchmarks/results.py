"""What was measured, and the file that keeps it: flat, so that the page and the goals look it up by name."""

from __future__ import annotations

import json
import os
import platform
import re
import sqlite3
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from servers import binaries

FILE = Path(__file__).parent / "results.json"
PACKAGES = (
    "semel starlette uvicorn uvloop httptools msgspec psycopg asyncpg redis hiredis aiohttp "
    "asgi-idempotency-header fastapi-idempotency fastapi-idempotency-key fastidempotent idemkit idempot "
    "aws-lambda-powertools boto3 django djangorestframework waitress drf-idempotency"
).split()

PER_SECOND, MICROSECONDS, P50, P99 = "per second", "µs", "µs p50", "µs p99"
BYTES, MEGABYTES, MILLISECONDS, SECONDS = "bytes", "MB", "ms", "s"
YES = "yes or no"
STORED_FIRST = "stored before answered"
"""1 if an answer was stored before it was given, else 0."""


def beside(case: str) -> str:
    """The case where every round comes right after one of the bare application, with the same requests."""
    return f"{case}, beside bare"


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure, once for each round. `load` is how many callers there were, or how many keys."""

    case: str
    who: str
    store: str
    load: int
    unit: str
    values: tuple[float, ...]

    @property
    def middle(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> str:
        """How far the rounds were apart, as ± of the middle."""
        half = (max(self.values) - min(self.values)) / 2
        return f"±{half / self.middle:.0%}" if self.middle else ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that is not a figure: what does not work, and why."""

    who: str
    text: str


Found = Measure | Note


@dataclass(slots=True)
class Part:
    """Everything that one part of the suite found, and when, and on what."""

    taken: str
    size: str
    seconds: float
    machine: dict[str, Any]
    measures: list[Measure] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @classmethod
    def of(cls, size: str, seconds: float, load_before: float, found: Iterable[Found]) -> Part:
        about = {**machine(), "load_before": round(load_before, 1)}
        part = cls(datetime.now(UTC).isoformat(timespec="seconds"), size, round(seconds, 1), about)
        for each in found:
            (part.measures if isinstance(each, Measure) else part.notes).append(each)  # type: ignore[arg-type]
        return part


@dataclass(slots=True)
class Results:
    parts: dict[str, Part] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Results:
        if not path.exists():
            return cls()
        parts = {}
        for name, part in json.loads(path.read_text())["parts"].items():
            measures = [Measure(**{**each, "values": tuple(each["values"])}) for each in part.pop("measures")]
            parts[name] = Part(**part | {"measures": measures, "notes": [Note(**each) for each in part["notes"]]})
        return cls(parts)

    def save(self, path: Path) -> None:
        """One line for each figure, so that two runs can be compared by eye."""
        parts = {name: asdict(part) for name, part in sorted(self.parts.items())}
        lines: list[str] = []
        for part in parts.values():
            for number, each in enumerate(part["measures"]):
                part["measures"][number] = f"@{len(lines)}@"
                lines.append(json.dumps(each, ensure_ascii=False))
        text = json.dumps({"parts": parts}, indent=1, ensure_ascii=False)
        path.write_text(re.sub(r'"@(\d+)@"', lambda found: lines[int(found[1])], text) + "\n")

    def find(self, part: str, case: str, who: str, store: str, load: int, unit: str) -> Measure | None:
        wanted = (case, who, store, load, unit)
        for each in self.measures(part):
            if (each.case, each.who, each.store, each.load, each.unit) == wanted:
                return each
        return None

    def of_bare(self, case: str, store: str, load: int, unit: str) -> float | None:
        """What ours is of the bare application, by the rounds that were taken in pairs."""
        ours, bare = (self.find("http", beside(case), who, store, load, unit) for who in ("semel", "bare app"))
        return ratio(ours, bare)

    def measures(self, part: str) -> Sequence[Measure]:
        return self.parts[part].measures if part in self.parts else ()


def ratio(over: Measure | None, under: Measure | None) -> float | None:
    """The median of the ratios within each round: what the machine did to both in that moment cancels out."""
    if over is None or under is None:
        return None
    pairs = list(zip(over.values, under.values, strict=False))
    return median(a / b for a, b in pairs) if pairs and all(b for _, b in pairs) else None


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "postgres": _says(binaries.find("postgres")),
        "redis": _says(binaries.find("redis")),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _says(program: Path | None) -> str:
    if program is None:
        return "missing"
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.[\d.]+", done.stdout)
    return found[0] if found else "unknown"
