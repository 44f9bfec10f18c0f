"""A clock that stands still until a test moves it, so that the test can stand exactly on a boundary."""

from __future__ import annotations

from itertools import count

DAY_MS = 24 * 3600 * 1000
_START_MS = 4_102_444_800_000  # the year 2100: later than every record made by a real clock
_days = count()


class ManualClock:
    """A `Clock` to open a store with.

    Without a time it starts a day after the one before it, so what earlier tests left is past retention.
    """

    def __init__(self, now_ms: int | None = None) -> None:
        self.now_ms = _START_MS + next(_days) * DAY_MS if now_ms is None else now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, by_ms: int) -> None:
        """Let so many milliseconds pass."""
        self.now_ms += by_ms
