"""What we want to reach, as ratios within one run, and whether we do. A goal that was not measured is not met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.apps import AT_ONCE, BARE, SEMEL
from benchmarks.at_store import PYTHON, C
from benchmarks.least import LEAST
from benchmarks.on_django import SEMEL_DJANGO
from benchmarks.places import DURABLE, STORES, TITLES
from benchmarks.results import (
    BYTES,
    MICROSECONDS,
    P50,
    P99,
    PER_SECOND,
    STORED_FIRST,
    YES,
    Measure,
    Results,
    ratio,
)
from benchmarks.through_gateway import GATEWAY, PROXY

FIRST = {"memory": 0.70, "sqlite": 0.50, "redis": 0.65, "postgres": 0.55}
REPLAY = {"memory": 1.35, "sqlite": 1.2, "redis": 1.2, "postgres": 1.2}
AGAINST_PEERS = {64: 4.0, 1: 2.0}
"""By the number of connections, of the best other library that stores before it answers."""
SIZES = {"postgres": 550, "sqlite": 450, "redis": 550}
DISK = {"postgres": 8.0, "sqlite": 30.0}


@dataclass(frozen=True, slots=True)
class Goal:
    what: str
    bound: float
    measured: float | None
    unit: str = ""
    least: bool = True

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.bound if self.least else self.measured <= self.bound

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.bound:g}{self.unit}"


def goals(results: Results) -> Iterator[Goal]:
    yield from http(results)
    yield from peers(results)
    yield from store(results)
    yield from others(results)


def http(results: Results) -> Iterator[Goal]:
    yield Goal("no key, of the bare app", 0.97, results.of_bare("no key", "memory", 64, PER_SECOND), " ×")
    yield Goal("no key, in one process, added", 2, added(results), " µs", least=False)
    for name in STORES:
        first = results.of_bare("first", name, 64, PER_SECOND)
        yield Goal(f"first execution, {TITLES[name]}, of the bare app", FIRST[name], first, " ×")
    for name in STORES:
        replay = results.of_bare("replay", name, 64, PER_SECOND)
        yield Goal(f"replay, {TITLES[name]}, of the bare app", REPLAY[name], replay, " ×")
    for name in STORES:
        slow = results.of_bare("first", name, 16, P99)
        yield Goal(f"p99 of first execution, {TITLES[name]}, 16 connections, of bare", 2, slow, " ×", least=False)


def added(results: Results) -> float | None:
    found = results.find("in-process", "no key", SEMEL, "memory", 1, MICROSECONDS)
    bare = results.find("in-process", "no key", BARE, "", 1, MICROSECONDS)
    return None if found is None or bare is None else found.middle - bare.middle


def answers_first(results: Results, who: str, store: str) -> bool:
    """It gives answers that are not stored yet, and may never be."""
    found = results.find("http", STORED_FIRST, who, store, 0, YES)
    return found is not None and not found.middle


def best_peer(results: Results, case: str, store: str, load: int, *, stored: bool = False) -> Measure | None:
    found = [
        each
        for each in results.measures("http")
        if (each.case, each.store, each.load, each.unit) == (case, store, load, PER_SECOND)
        and each.who not in (BARE, AT_ONCE, *LEAST, SEMEL, SEMEL_DJANGO)
        and not (stored and answers_first(results, each.who, store))
    ]
    return max(found, key=lambda each: each.middle, default=None)


def peers(results: Results) -> Iterator[Goal]:
    for load, bound in AGAINST_PEERS.items():
        for name in DURABLE:
            best = best_peer(results, "first", name, load, stored=True)
            ours = results.find("http", "first", SEMEL, name, load, PER_SECOND)
            connections = "1 connection" if load == 1 else f"{load} connections"
            what = f"first execution, {TITLES[name]}, {connections}, of the best peer that stores first"
            yield Goal(what, bound, ratio(ours, best), " ×")


def store(results: Results) -> Iterator[Goal]:
    for callers in (64, 256):
        ours = results.find("store", "first", SEMEL, "postgres", callers, PER_SECOND)
        raw = results.find("store", "first", C, "postgres", callers, PER_SECOND)
        yield Goal(f"store alone, PostgreSQL, {callers} callers, of pgbench", 2.5, ratio(ours, raw), " ×")
    for name in ("redis", "postgres"):
        found = results.find("wake", "wake, other process", SEMEL, name, 1, P50)
        woken = None if found is None else found.middle / 1000
        yield Goal(f"wake-up in another process, {TITLES[name]}", 0.5, woken, " ms", least=False)
    for name in STORES:
        found = results.find("wake", "wake, same process", SEMEL, name, 1, P50)
        here = None if found is None else found.middle
        yield Goal(f"wake-up in the same process, {TITLES[name]}", 20, here, " µs", least=False)
    for name in DURABLE:
        yield from growth(results, name)
    for name, most in SIZES.items():
        sized = next((each for each in results.measures("growth") if (each.store, each.unit) == (name, BYTES)), None)
        yield Goal(f"bytes per key, {TITLES[name]}", most, None if sized is None else sized.middle, least=False)
    for name, bound in DISK.items():
        ours = results.find("disk", "first, fsync of 1 ms", SEMEL, name, 64, PER_SECOND)
        raw = results.find("disk", "first, fsync of 1 ms", PYTHON, name, 64, PER_SECOND)
        yield Goal(f"a disk with 1 ms fsync, {TITLES[name]}, of one by one", bound, ratio(ours, raw), " ×")


def growth(results: Results, name: str) -> Iterator[Goal]:
    """From the fewest keys to the most that were stored in the run."""
    levels = sorted({each.load for each in results.measures("growth") if each.case.startswith("growth, first")})
    few, many = (levels[0], levels[-1]) if levels else (0, 0)
    for case in ("first", "replay"):
        lone = [results.find("growth", f"growth, {case}, lone", SEMEL, name, level, P50) for level in (few, many)]
        yield Goal(
            f"{case}, {TITLES[name]}, latency at {shown(many)} keys, of that at {shown(few)}",
            1.35,
            ratio(lone[1], lone[0]),
            " ×",
            least=False,
        )
        rates = [
            results.find("growth", f"growth, {case}, 64 callers", SEMEL, name, level, PER_SECOND)
            for level in (few, many)
        ]
        kept = None if rates[0] is None or rates[1] is None else rates[1].middle / rates[0].middle
        yield Goal(
            f"{case}, {TITLES[name]}, throughput at {shown(many)} keys, of that at {shown(few)}", 0.7, kept, " ×"
        )


def shown(count: int) -> str:
    return f"{count // 1_000_000}M" if count >= 1_000_000 else f"{count // 1_000}k" if count >= 1_000 else str(count)


def others(results: Results) -> Iterator[Goal]:
    for case, bound in (("no key", 0.6), ("first", 0.5)):
        bare, ours = (results.find("gateway", case, who, "sqlite", 32, PER_SECOND) for who in (PROXY, GATEWAY))
        yield Goal(
            f"gateway, {'with' if case == 'first' else 'no'} key, of a bare proxy", bound, ratio(ours, bare), " ×"
        )
    for name in DURABLE:
        one, two = (results.find("workers", "first", SEMEL, name, count, PER_SECOND) for count in (1, 2))
        yield Goal(f"2 workers, {TITLES[name]}, of 1", 1, ratio(two, one), " ×")
