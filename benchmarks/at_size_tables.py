"""The tables of the page about PostgreSQL at size."""

from __future__ import annotations

from benchmarks.apps import SEMEL
from benchmarks.at_size import DEFAULTS, FEW, HELD_BACK, HOLD, TOGETHER
from benchmarks.goals import shown
from benchmarks.results import BYTES, MILLISECONDS, P50, PER_SECOND, Measure, Results, ratio
from benchmarks.tables import Row, number, table, times

NAMES = {
    "semel_records": "the table itself, 200 bytes of which are the answer",
    "TOAST": "TOAST: answers over about 2 kB",
    "semel_records_pkey": "index on the digest",
    "semel_records_expires": "index on the end of retention",
    "semel_records_in_progress": "index of what is in progress",
    "all": "together",
}


def count_of(results: Results) -> int:
    return max((each.load for each in results.measures("at-size")), default=0)


def find(results: Results, case: str, unit: str, *, few: bool = False) -> Measure | None:
    count = FEW if few else count_of(results)
    return results.find("at-size", case, SEMEL, "postgres", count, unit)


def sizes(results: Results) -> str:
    count, rows = count_of(results), list[Row]()
    for name, title in NAMES.items():
        if found := find(results, f"filled, {name}", BYTES):
            rows.append([title, number(found, 1), f"{found.middle * count / 1e9:.2f}"])
    return table(["", "bytes per key", f"GB for {shown(count)} keys"], rows)


def calls(results: Results) -> str:
    """The ratios are the medians of those within each round."""
    rows: list[Row] = []
    for case in ("first", "replay"):
        for what, unit in (("lone", P50), (f"{TOGETHER} callers", PER_SECOND)):
            few, many = (find(results, f"{case}, {what}", unit, few=each) for each in (True, False))
            if few and many:
                title = f"{'first execution' if case == 'first' else case}, {what}, {unit}"
                rows.append([title, number(few), number(many), times(ratio(many, few))])
    return table(["", f"{shown(FEW)} keys", f"{shown(count_of(results))} keys", "ratio"], rows)


def turnovers(results: Results) -> str:
    """From the first look at a turnover to its last one."""
    rows: list[Row] = []
    for name in (HOLD, DEFAULTS, HELD_BACK):
        whole, dead = find(results, f"{name}, all", BYTES), find(results, f"{name}, dead", "rows")
        added, vacuums = find(results, f"{name}, added", "rows"), find(results, f"{name}, vacuums", "times")
        live, purge = (find(results, f"{name}, {what}", MILLISECONDS) for what in ("live p99", "purge p50"))
        if whole and dead and added and vacuums and live and purge:
            growth = f"{whole.values[-1] / whole.values[0] - 1:+.1%}"
            ends = [f"{purge.values[0]:.0f}", f"{max(purge.values):.0f}", number(live)]
            counts = [f"{added.values[-1]:,.0f}", f"{max(dead.values):,.0f}", f"{vacuums.values[-1]:.0f}"]
            rows.append([name, *counts, growth, *ends])
    figures = ["added and purged", "dead rows at most", "vacuums", "size"]
    head = ["", *figures, "a batch of the purge at first, ms", "at most", "live p99, ms"]
    return table(head, rows)


def machine(results: Results) -> str:
    part = results.parts["at-size"]
    told = {name: part.machine[name] for name in ("processor", "cores", "postgres")}
    facts = ", ".join(f"{name} {value}" for name, value in told.items())
    load = part.machine["load_before"]
    return f"{facts}; {part.taken}, {part.seconds:.0f} s, with a load average of {load:.1f} before it began."


AT_SIZE_TABLES = {"sizes-at-size": sizes, "calls-at-size": calls, "turnovers-at-size": turnovers, "machine": machine}
