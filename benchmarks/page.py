"""Writes the measured parts of three pages of `docs/`, and the plots. Nothing here measures.

A measured part stands between `<!-- measured: name -->` and `<!-- end measured -->`; the rest is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import plots
from benchmarks.apps import BARE, SEMEL
from benchmarks.at_size_tables import AT_SIZE_TABLES
from benchmarks.on_django import ON_DJANGO
from benchmarks.places import DURABLE, STORES, TITLES
from benchmarks.results import P50, P99, PER_SECOND, Results, ratio
from benchmarks.tables import TABLES

DOCS = Path(__file__).parent.parent / "docs"
PAGES = (DOCS / "performance.md", DOCS / "measurements.md")
AT_SIZE = Path(__file__).parent / "at_size.json", DOCS / "postgres-at-size.md"
"""A run of half an hour of its own, and its page."""
FOLDER = "plots"
PART = re.compile(r"(<!-- measured: ([a-z-]+) -->\n).*?(<!-- end measured -->)", re.DOTALL)


def files(results: Results) -> dict[Path, str]:
    """Every file that follows from the results, with its content."""
    drawn = dict(figures(results))
    found = {DOCS / FOLDER / f"{name}.svg": picture for name, picture in drawn.items()}

    def part(match: re.Match[str]) -> str:
        name = match[2]
        pictures = [f"![{name}]({FOLDER}/{each}.svg)" for each in drawn if each.partition("-of-")[2] == name]
        return f"{match[1]}\n" + "\n\n".join([TABLES[name](results), *pictures]) + f"\n\n{match[3]}"

    found |= {page: PART.sub(part, page.read_text()) for page in PAGES}
    kept, page = AT_SIZE
    at_size = Results.load(kept)
    found[page] = PART.sub(
        lambda match: f"{match[1]}\n{AT_SIZE_TABLES[match[2]](at_size)}\n\n{match[3]}", page.read_text()
    )
    return found


def write(results: Results) -> None:
    (DOCS / FOLDER).mkdir(exist_ok=True)
    for path, content in files(results).items():
        path.write_text(content)
        print(f"wrote {path.relative_to(DOCS.parent)}")


def check(results: Results) -> int:
    stale = [path for path, content in files(results).items() if not path.exists() or path.read_text() != content]
    for path in stale:
        print(f"{path.relative_to(DOCS.parent)} is out of date: run `python -m benchmarks --page`")
    return int(bool(stale))


def figures(results: Results) -> list[tuple[str, str]]:
    """Name and picture. What stands after `-of-` is the part of the page where it is shown."""
    found: list[tuple[str, str]] = []
    bare = results.find("http", "first", BARE, "", 64, PER_SECOND)
    for case in ("first", "replay"):
        values = {}
        for each in results.measures("http"):
            shown = (each.case, each.load, each.unit) == (case, 64, PER_SECOND) and each.who not in ON_DJANGO
            if shown and each.store and (value := ratio(each, bare)):
                values[f"{each.who}, {TITLES[each.store]}"] = (value, each.who == SEMEL)
        if values:
            ordered = dict(sorted(values.items(), key=lambda item: (-item[1][0], item[0])))
            title = f"{case}: requests per second at 64 connections, bare app = 1"
            found.append((f"{case}-of-contenders", plots.bars(title, ordered, line=1.0)))
    found += latency(results)
    for case in ("first", "replay"):
        series = {
            TITLES[store]: {
                each.load: each.middle
                for each in results.measures("growth")
                if (each.case, each.store) == (f"growth, {case}, 64 callers", store)
            }
            for store in DURABLE
        }
        if all(series.values()):
            title = f"{case}: calls per second at 64 callers, as keys pile up"
            found.append((f"growth-{case}-of-growth", plots.lines(title, series, across="stored keys", up="")))
    return found


def latency(results: Results) -> list[tuple[str, str]]:
    """The middle and the tail, from one connection to many."""
    found = []
    for unit, name in ((P50, "p50"), (P99, "p99")):
        whose = {"bare app": ("first", BARE, "")} | {TITLES[store]: ("first", SEMEL, store) for store in STORES}
        series = {
            title: {
                each.load: each.middle
                for each in results.measures("http")
                if (each.case, each.who, each.store) == at and each.unit == unit
            }
            for title, at in whose.items()
        }
        if all(series.values()):
            title = f"first execution, {name} in µs"
            found.append((f"{name}-of-connections", plots.lines(title, series, across="connections", up="")))
    return found
