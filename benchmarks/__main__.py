"""`make bench`: measures, writes `results.json` and the pages made from it.

`python -m benchmarks --only http,store --size quick` measures some parts in little time; what was measured before of
the other parts is kept. `--page` measures nothing and writes the pages; `--check` says whether they are up to date.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import (
    adapters,
    at_size,
    at_store,
    exactly_once,
    footprint,
    growth,
    in_process,
    journal,
    messages,
    on_dynamodb,
    over_http,
    page,
    publishers,
    purging,
    relaying,
    slow_disk,
    through_gateway,
    waking,
    workers,
)
from benchmarks.places import Places, places
from benchmarks.results import FILE, Found, Measure, Part, Results
from benchmarks.sizes import SIZES, Size

PARTS: dict[str, Callable[[Size, Places], Iterator[Found]]] = {
    "http": over_http.measure,
    "in-process": in_process.measure,
    "store": at_store.measure,
    "wake": waking.measure,
    "transaction": exactly_once.measure,
    "messages": messages.measure,
    "gateway": through_gateway.measure,
    "workers": workers.measure,
    "disk": slow_disk.measure,
    "footprint": footprint.measure,
    "growth": growth.measure,
    "at-size": at_size.measure,
    "purge": purging.measure,
    "relay": relaying.measure,
    "publish": publishers.measure,
    "journal": journal.measure,
    "client": adapters.measure,
    "dynamodb": on_dynamodb.measure,
}
APART = {"at-size": page.AT_SIZE[0]}
"""Parts with a file and a page of their own, which are measured only when they are named."""


def run(names: list[str], size: Size, out: Path) -> list[str]:
    """Measure these parts; says which failed. Each is saved as soon as it is there."""
    failed = []
    load = os.getloadavg()[0]
    with places() as where:
        for name in names:
            print(f"==> {name} ({size.name})", flush=True)
            started = time.monotonic()
            found: list[Found] = []
            try:
                for each in PARTS[name](size, where):
                    found.append(each)
                    print(f"    {shown(each)}", flush=True)
            except Exception:  # the other parts are worth having
                traceback.print_exc()
                failed.append(name)
                continue
            kept = APART.get(name, out) if out == FILE else out
            results = Results.load(kept)
            results.parts[name] = Part.of(size.name, time.monotonic() - started, load, found)
            results.save(kept)
    return failed


def shown(each: Found) -> str:
    if isinstance(each, Measure):
        what = f"{each.case}, {each.who}, {each.store}"
        return f"{what:<66}{each.load:>8}{each.middle:>14,.1f} {each.unit} {each.spread}"
    return f"{each.who}: {each.text}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        default=",".join(name for name in PARTS if name not in APART),
        help=f"parts, with commas: {', '.join(PARTS)}",
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="full")
    parser.add_argument("--quick", action="store_const", const="quick", dest="size", help="short for --size quick")
    parser.add_argument(
        "--out",
        type=Path,
        default=FILE,
        help="the results file; another one than the default has no page",
    )
    parser.add_argument("--page", action="store_true", help="measure nothing, write the pages")
    parser.add_argument("--check", action="store_true", help="measure nothing, say whether the pages are up to date")
    options = parser.parse_args()
    if options.check:
        return page.check(Results.load(options.out))
    names = options.only.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    failed = [] if options.page else run(names, SIZES[options.size], options.out)
    if options.out == FILE:
        page.write(Results.load(FILE))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
