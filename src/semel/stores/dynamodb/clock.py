"""This machine's clock, compared with the time in every answer of DynamoDB's.

DynamoDB lets no condition ask for its own time, so the caller's clock decides whether a lease has lapsed. Two things
bound what a wrong clock may do. A clock that is proven to be further off than `skew_max_ms` decides nothing: calls are
refused. And a lease of another caller counts as lapsed only twice `skew_max_ms` later, which is how far two clocks that
are not refused may be apart.

An answer tells the time in whole seconds, so one answer proves little. Several together prove more: each says that the
difference is between two numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime
from math import inf

from semel.errors import StoreMisconfigured
from semel.runtime.clock import steady_clock
from semel.stores.dynamodb.settings import DynamodbSettings

GRAIN_MS = 1_000
WINDOW_MS = 60_000
"""What older answers proved is forgotten: clocks drift."""


class CheckedClock:
    """Counts on steadily from the wall clock's time. `read` is for tests."""

    def __init__(self, settings: DynamodbSettings, read: Callable[[], int] | None = None) -> None:
        self._settings = settings
        self._given = read
        self.restart()

    def restart(self) -> None:
        """Take the wall clock's time anew: it may have been set, or the machine was paused."""
        self.now_ms: Callable[[], int] = self._given or steady_clock()
        self._forget(self.now_ms())

    def _forget(self, now_ms: int) -> None:
        self._since_ms = now_ms
        self._least, self._most = -inf, inf

    def compare(self, sent_ms: int, received_ms: int, date: str | None) -> None:
        """Learn from the `Date` of an answer. An emulator may leave it out."""
        if date is None:
            return
        try:
            date_ms = int(parsedate_to_datetime(date).timestamp()) * 1000
        except ValueError:
            return
        if received_ms - self._since_ms > WINDOW_MS:
            self._forget(received_ms)
        least, most = sent_ms - date_ms - GRAIN_MS, received_ms - date_ms
        if least > self._most or most < self._least:  # the clocks have moved against each other
            self._forget(received_ms)
        self._least, self._most = max(least, self._least), min(most, self._most)

    @property
    def ahead_ms(self) -> int:
        """How far this machine's clock is ahead for sure; less than 0 if it is behind."""
        return round(max(0.0, self._least) + min(0.0, self._most))

    @property
    def bounds_ms(self) -> tuple[float, float]:
        """Between these is what this machine's clock is ahead."""
        return self._least, self._most

    def is_wrong(self) -> bool:
        return abs(self.ahead_ms) > self._settings.skew_max_ms

    def refusal(self) -> StoreMisconfigured:
        ahead_ms = self.ahead_ms
        return StoreMisconfigured(
            f"{self._settings.shown}: the clock of this machine is at least {abs(ahead_ms)} ms "
            f"{'ahead of' if ahead_ms > 0 else 'behind'} DynamoDB's, and no more than skew_max_ms="
            f"{self._settings.skew_max_ms} is allowed: it decides whether a lease has lapsed. Run a time service "
            "(chrony, systemd-timesyncd)"
        )
