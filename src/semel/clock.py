"""The clock of stores that have none of their own."""

from __future__ import annotations

import time


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
