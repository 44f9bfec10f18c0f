"""Rounds that alternate (A/B/A/B): what the machine does meanwhile happens to all contenders alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import quantiles
from typing import TypeVar

from benchmarks.results import P50, P99, Measure, rounded

K = TypeVar("K")
T = TypeVar("T")


def alternate(contenders: Mapping[K, Callable[[], T]], rounds: int, *, warm: bool = True) -> dict[K, list[T]]:
    """Run each contender once in every round. The first round warms up and is not counted."""
    for run in contenders.values() if warm else ():
        run()
    found: dict[K, list[T]] = {name: [] for name in contenders}
    for number in range(rounds):
        # Every other round goes backwards: nobody is always the one who comes after the heaviest.
        for name, run in list(contenders.items())[:: -1 if number % 2 else 1]:
            found[name].append(run())
    return found


async def aalternate(contenders: Mapping[K, Callable[[], Awaitable[T]]], rounds: int) -> dict[K, list[T]]:
    """The same for coroutines."""
    for run in contenders.values():
        await run()
    found: dict[K, list[T]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, run in list(contenders.items())[:: -1 if number % 2 else 1]:
            found[name].append(await run())
    return found


def measured(case: str, who: str, store: str, load: int, unit: str, values: Sequence[float]) -> Measure:
    return Measure(case, who, store, load, unit, tuple(rounded(value) for value in values))


def latencies(case: str, who: str, store: str, load: int, values_us: Sequence[float]) -> list[Measure]:
    """The middle and the tail of single calls."""
    cuts = quantiles(values_us, n=100) if len(values_us) > 1 else [values_us[0]] * 99
    return [
        measured(case, who, store, load, P50, [cuts[49]]),
        measured(case, who, store, load, P99, [cuts[98]]),
    ]
