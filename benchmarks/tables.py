"""The tables of the page about performance, each made from the results alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.apps import AT_ONCE, BARE, SEMEL
from benchmarks.at_store import PYTHON, UNPREPARED, C
from benchmarks.exactly_once import ALONE, DRIVERS
from benchmarks.goals import goals, shown
from benchmarks.least import DICT_ALONE, DICT_AND_TASK
from benchmarks.on_django import BARE_DJANGO, ON_DJANGO
from benchmarks.places import DURABLE, STORES, TITLES
from benchmarks.results import (
    BYTES,
    MEGABYTES,
    MICROSECONDS,
    MILLISECONDS,
    P50,
    P99,
    PER_SECOND,
    STORED_FIRST,
    YES,
    Measure,
    Results,
    ratio,
)

BUSY = 1.0
"""A load average before the run of more than this is somebody else's work."""
NOT_YET = "*not measured yet*"
Row = Sequence[object]


def table(head: Row, rows: Iterable[Row], *, names: int = 1) -> str:
    """Figures stand to the right; the first columns are names."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    if not lines:
        return NOT_YET
    return "\n".join(
        [f"| {' | '.join(map(str, head))} |", "|" + "---|" * names + "---:|" * (len(head) - names), *lines]
    )


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def number(found: Measure | None, digits: int = 0) -> str:
    return "" if found is None else f"{found.middle:,.{digits}f}"


def cost(results: Results) -> str:
    """For the reader who has to decide: added latency, kept throughput, storage."""
    rows = []
    for store in STORES:
        alone = [
            results.find("http", "first", BARE, "", 1, P50),
            *(results.find("http", case, SEMEL, store, 1, P50) for case in ("first", "replay")),
        ]
        kept = [results.of_bare(case, store, 64, PER_SECOND) for case in ("first", "replay")]
        sized = next((each for each in results.measures("growth") if (each.store, each.unit) == (store, BYTES)), None)
        if None in alone:
            continue
        first, replay = (f"{each.middle - alone[0].middle:+,.0f} µs" for each in alone[1:])  # type: ignore[union-attr]
        million = "" if sized is None else f"{sized.middle:,.0f} MB"
        rows.append([TITLES[store], first, replay, *map(times, kept), million])
    head = ["store", "added by a first execution", "added by a replay", "throughput kept, first", "replay"]
    return table([*head, "a million keys"], rows)


def goal_table(results: Results) -> str:
    words = {True: "met", False: "**not met**", None: "not measured"}
    rows = [
        [goal.what, goal.wanted, "" if goal.measured is None else f"{goal.measured:.3g}{goal.unit}", words[goal.met]]
        for goal in goals(results)
    ]
    met = sum(row[3] == "met" for row in rows)
    return caution(results) + f"{met} of {len(rows)} are met.\n\n" + table(["", "goal", "measured", ""], rows)


def caution(results: Results) -> str:
    """Figures of a quick look, or of a machine with other work, are shown as what they are."""
    hasty = sorted(name for name, part in results.parts.items() if part.size not in ("full", "big"))
    busy = sorted(name for name, part in results.parts.items() if part.machine["load_before"] > BUSY)
    words = [
        f"**{what}: {', '.join(names)}.** Do not quote these."
        for what, names in (("Taken in a hurry", hasty), ("Taken while the machine had other work", busy))
        if names
    ]
    return "".join(f"{each}\n\n" for each in words)


def contenders(results: Results) -> str:
    return ranked(results, BARE, lambda who: who not in ON_DJANGO)


def on_django(results: Results) -> str:
    return ranked(results, BARE_DJANGO, lambda who: who in ON_DJANGO)


def ranked(results: Results, base: str, wanted: Callable[[str], bool]) -> str:
    """Everybody at 64 connections, the fastest first, store by store; the bare application is 1."""
    bare = results.find("http", "first", base, "", 64, PER_SECOND)
    rows: list[Row] = []
    for store in STORES:
        shown = [each for each in results.measures("http") if each.store == store and each.load == 64]
        who = {each.who for each in shown if each.case in ("first", "replay")}
        found = []
        for name in filter(wanted, who):
            cells = [results.find("http", case, name, store, 64, PER_SECOND) for case in ("first", "replay")]
            tail = results.find("http", "first", name, store, 64, P99)
            ratios = [times(ratio(cell, bare)) for cell in cells]
            spread = cells[0].spread if cells[0] else ""
            order = results.find("http", STORED_FIRST, name, store, 0, YES)
            stored = "" if order is None else "yes" if order.middle else "**no**"
            alone = results.find("http", "first", name, store, 1, P50)
            found.append([TITLES[store], name, *ratios, spread, number(cells[0]), number(tail), number(alone), stored])
        rows += sorted(found, key=lambda row: (-float(str(row[2]) or 0), str(row[1])))
    head = ["store", "", "first", "replay", "spread", "first per second", "first, p99 µs"]
    return table([*head, "alone, p50 µs", "stored first"], rows, names=2)


def connections(results: Results) -> str:
    """semel as the load grows, beside the bare application at the same load."""
    loads = sorted({each.load for each in results.measures("http") if each.case == "first"})
    shown = {
        "an application that answers at once": ("no key", AT_ONCE, ""),
        "a dict alone, first": ("first", DICT_ALONE, "memory"),
        "a dict and a task, first": ("first", DICT_AND_TASK, "memory"),
        "no key": ("no key", SEMEL, "memory"),
    }
    shown |= {f"{case}, {TITLES[store]}": (case, SEMEL, store) for case in ("first", "replay") for store in STORES}
    rows: list[Row] = []
    for title, at in shown.items():
        cells = []
        for load in loads:
            case, who, store = at
            bare = results.find("http", case, BARE, "", load, PER_SECOND)
            other = ratio(results.find("http", *at, load, PER_SECOND), bare)
            cells.append(times(results.of_bare(case, store, load, PER_SECOND) if who == SEMEL else other))
        if any(cells):
            rows.append([title, *cells])
    return table(["of the bare app", *(counted(load, "connection") for load in loads)], rows)


def in_process(results: Results) -> str:
    rows: list[Row] = []
    for case in ("no key", "first", "replay", "in flight", "WSGI, no key", "WSGI, first", "WSGI, replay"):
        for store in STORES:
            cells = []
            for load in (1, 64):
                found = results.find("in-process", case, SEMEL, store, load, MICROSECONDS)
                base = results.find(
                    "in-process", ("WSGI, " * case.startswith("WSGI")) + "no key", BARE, "", load, MICROSECONDS
                )
                cells.append("" if found is None or base is None else f"{found.middle - base.middle:,.1f}")
            if any(cells):
                rows.append([case if case == "no key" else f"{case}, {TITLES[store]}", *cells])
    return table(["µs added", "one by one", "64 at once, each"], rows)


def at_store(results: Results) -> str:
    loads = sorted({each.load for each in results.measures("store")})
    rows: list[Row] = []
    for store in STORES:
        for case, who in (("first", SEMEL), ("first", UNPREPARED), ("first", PYTHON), ("first", C), ("replay", SEMEL)):
            cells = [number(results.find("store", case, who, store, load, PER_SECOND)) for load in loads]
            if any(cells):
                rows.append([f"{TITLES[store]}, {'claim + complete' if case == 'first' else case}, {who}", *cells])
    return table(["per second", *(counted(load, "caller") for load in loads)], rows)


def waking(results: Results) -> str:
    rows: list[Row] = []
    for case in ("wake, same process", "wake, other process", "complete and wake, other process"):
        for store in STORES:
            cells = [number(results.find("wake", case, SEMEL, store, 1, unit)) for unit in (P50, P99)]
            if any(cells):
                rows.append([f"{case}, {TITLES[store]}", *cells])
    return table(["µs", "p50", "p99"], rows)


def transaction(results: Results) -> str:
    rows: list[Row] = []
    for driver, (store, title) in DRIVERS.items():
        alone = results.find("transaction", f"first, {driver}", ALONE, store, 1, PER_SECOND)
        for case, who in (("first", ALONE), ("first", SEMEL), ("replay", SEMEL)):
            lone = results.find("transaction", f"{case}, {driver}, lone", who, store, 1, P50)
            rates = [results.find("transaction", f"{case}, {driver}", who, store, load, PER_SECOND) for load in (1, 16)]
            name = who if who == ALONE else f"{case}, exactly-once"
            if lone:
                rows.append([f"{title}, {name}", number(lone), *map(number, rates), times(ratio(rates[0], alone))])
    return table(["one insert", "µs p50", "per second, 1 caller", "16 callers", "of it alone"], rows)


def growth(results: Results) -> str:
    levels = sorted({each.load for each in results.measures("growth") if each.case.startswith("growth")})
    rows: list[Row] = []
    for store in DURABLE:
        for case in ("first", "replay"):
            for what, unit in (("lone", P50), ("64 callers", PER_SECOND)):
                found = [
                    results.find("growth", f"growth, {case}, {what}", SEMEL, store, level, unit) for level in levels
                ]
                rows.append([f"{TITLES[store]}, {case}, {what}, {unit}", *map(number, found)])
    return table(["", *(f"{shown(level)} keys" for level in levels)], rows if levels else [])


def purging(results: Results) -> str:
    rows: list[Row] = []
    for store in ("sqlite", "postgres"):
        purge = [each for each in results.measures("purge") if (each.case, each.store) == ("purge", store)]
        tails = {
            each.case: number(each, 1)
            for each in results.measures("purge")
            if each.store == store and each.unit == MILLISECONDS
        }
        if purge:
            rows.append([TITLES[store], f"{purge[0].load:,}", number(purge[0]), *tails.values()])
    head = ["", "expired", "purged per second", "live p99 before, ms", "worst", "p99 beside it, ms", "worst"]
    return table(head, rows)


def footprint(results: Results) -> str:
    found = [(part, each) for part in ("growth", "http", "footprint") for each in results.measures(part)]
    rows = [
        [each.case, " ".join(filter(None, [each.who, TITLES[each.store]])), number(each), each.unit]
        for part, each in found
        if each.unit in (BYTES, MEGABYTES) or part == "footprint"
    ]
    return table(["", "", "", ""], rows, names=2)


def disk(results: Results) -> str:
    rows: list[Row] = []
    for store in ("sqlite", "postgres"):
        cells = [results.find("disk", "first, fsync of 1 ms", who, store, 64, PER_SECOND) for who in (SEMEL, PYTHON)]
        if cells[0]:
            rows.append([TITLES[store], *map(number, cells), times(ratio(cells[0], cells[1]))])
    return table(["claim + complete per second, 64 callers", "semel", "one transaction per call", "ratio"], rows)


def workers(results: Results) -> str:
    rows: list[Row] = []
    for store in DURABLE:
        cells = [results.find("workers", "first", SEMEL, store, count, PER_SECOND) for count in (1, 2, 4)]
        if cells[0]:
            rows.append([TITLES[store], *(times(ratio(cell, cells[0])) for cell in cells)])
    notes = [f"- {note.text}" for part in ("workers",) if part in results.parts for note in results.parts[part].notes]
    return "\n\n".join(filter(None, [table(["of 1 worker", "1", "2", "4"], rows), "\n".join(notes)]))


def notes(results: Results) -> str:
    lines = [
        f"- {note.who}: {note.text.replace('|', '/')}"
        for name, part in results.parts.items()
        if name != "workers"
        for note in part.notes
    ]
    return "\n".join(lines) or "Everything that is installed worked."


def machine(results: Results) -> str:
    rows = [
        [
            name,
            part.taken,
            part.size,
            f"{part.seconds:.0f} s",
            part.machine["cores"],
            f"{part.machine['load_before']:.1f}",
        ]
        for name, part in sorted(results.parts.items())
    ]
    if not rows:
        return NOT_YET
    newest = max(results.parts.values(), key=lambda part: part.taken).machine
    facts = [f"{name} {newest[name]}" for name in ("processor", "system", "python", "sqlite", "postgres", "redis")]
    packages = ", ".join(f"{name} {version}" for name, version in newest["packages"].items())
    told = table(["part", "taken", "size", "took", "cores", "load before it"], rows)
    return "\n\n".join([told, "; ".join(facts) + ".", packages + "."])


TABLES: dict[str, Callable[[Results], str]] = {
    "cost": cost,
    "goals": goal_table,
    "contenders": contenders,
    "django": on_django,
    "connections": connections,
    "in-process": in_process,
    "store": at_store,
    "wake": waking,
    "transaction": transaction,
    "growth": growth,
    "purge": purging,
    "footprint": footprint,
    "disk": disk,
    "workers": workers,
    "notes": notes,
    "machine": machine,
}
