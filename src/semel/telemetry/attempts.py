"""The attempts that run in this process, and since when: for gauges and durations."""

from __future__ import annotations

import time

from semel.core.events import ENDS, STARTS, Event

ATTEMPTS_MAX = 100_000
"""A bound, because the end of an attempt may never be reported."""


class Attempts:
    """Pairs the event that ends an attempt with the one that began it."""

    def __init__(self) -> None:
        self._began_s: dict[str, float] = {}

    def begin(self, event: Event) -> bool:
        """Whether this event begins an attempt that is counted from now on."""
        if event.kind not in STARTS or len(self._began_s) >= ATTEMPTS_MAX:
            return False
        self._began_s[event.owner] = time.perf_counter()
        return True

    def end(self, event: Event) -> float | None:
        """How many seconds the attempt took that ends with this event; None when it does not end a counted one."""
        if event.kind not in ENDS:
            return None
        began_s = self._began_s.pop(event.owner, None)
        return None if began_s is None else time.perf_counter() - began_s
