"""What every store's examination measures and says in the same words: the clock, a round trip, the schema."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from semel.runtime.clock import wall_ms
from semel.store import Finding

SAMPLES = 9
SKEW_MAX_MS = 1_000
SLOW_MS = 50.0


def clock_skew(server_ms: Callable[[], int]) -> Finding:
    """Compare the server's clock with ours, by the quickest of some questions."""
    best_ms, skew_ms = float("inf"), 0.0
    for _ in range(SAMPLES):
        asked = time.perf_counter()
        before_ms = wall_ms()
        there_ms = server_ms()
        took_ms = (time.perf_counter() - asked) * 1000
        if took_ms < best_ms:
            best_ms, skew_ms = took_ms, there_ms - before_ms - took_ms / 2
    detail = f"the store's clock is {round(skew_ms):+d} ms from this machine's (±{best_ms / 2 + 1:.0f} ms)"
    if abs(skew_ms) - best_ms / 2 > SKEW_MAX_MS:
        return Finding(
            "clock",
            "warning",
            f"{detail}; leases and retention go by the store's, so ages shown here are off by as much",
            "run a time service (chrony, systemd-timesyncd) on both machines",
        )
    return Finding("clock", "ok", detail)


def latency(read: Callable[[], object]) -> Finding:
    """How long a read takes, from here, one after the other."""
    took_ms: list[float] = []
    for _ in range(SAMPLES):
        asked = time.perf_counter()
        read()
        took_ms.append((time.perf_counter() - asked) * 1000)
    median_ms = statistics.median(took_ms)
    detail = f"median of {SAMPLES} reads {median_ms:.3g} ms, slowest {max(took_ms):.3g} ms"
    if median_ms > SLOW_MS:
        return Finding(
            "latency",
            "warning",
            detail,
            "every protected request waits for two round trips: bring the store nearer, or find out what slows it down",
        )
    return Finding("latency", "ok", detail)


def schema(newest: Sequence[int] | None, known: int) -> Finding:
    """Whether the tables fit this version. `newest` is the number and `readable_from` of the last migration there."""
    number, readable_from = newest or (0, 0)
    migrate = "run semel migrate once, with a user who may create tables (semel migrate --sql prints what it runs)"
    if number == 0:
        return Finding("schema", "problem", f"there are no tables of semel; this version needs schema {known}", migrate)
    if number < known:
        return Finding("schema", "problem", f"schema {number}, migrations to {known} are missing", migrate)
    if readable_from > known:
        return Finding(
            "schema",
            "problem",
            f"schema {number} needs a semel that knows {readable_from}, this one knows {known}",
            "upgrade semel",
        )
    newer = "" if number == known else f" (newer than this version's {known}, which it can use)"
    return Finding("schema", "ok", f"schema {number}, nothing is missing{newer}")
