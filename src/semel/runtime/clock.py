"""The clocks of stores that have none of their own.

The wall clock says what people mean by a time, and it jumps: it is set by hand, by NTP, after a pause of a virtual
machine. A lease must not jump with it: forward, running work would be entered again; back, a crashed key would stay in
progress. So stores count with the time since the machine was started, which only goes forward, at the pace of a second
per second. It is read by every process alike, and it counts on while the machine sleeps, where the system has such a
clock (Linux: CLOCK_BOOTTIME). What has to be added to get a time that people can read is fixed once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
UPTIME = Path("/proc/uptime")
UPTIME_S_MAX = 10 * 365 * 86_400
"""A longer one is none: libfaketime, in tests, puts the time of day in the place of every clock, not of this file."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE = "/proc/self/ns/time"
"""A container may have one, in which the time since the start is another."""


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """Since the machine was started. Without a clock for that: since some moment that other processes may not share."""
    if BOOT_CLOCK is None:
        return time.monotonic_ns() // 1_000_000
    if _is_faked():
        return int(float(UPTIME.read_text().split()[0]) * 1000)
    return time.clock_gettime_ns(BOOT_CLOCK) // 1_000_000


@cache
def _is_faked() -> bool:
    return BOOT_CLOCK is not None and time.clock_gettime(BOOT_CLOCK) > UPTIME_S_MAX and UPTIME.exists()


@cache
def find_boot() -> str | None:
    """What all processes share whose `boot_ms` is the same clock, until the machine starts again. None: not known."""
    if BOOT_CLOCK is None:
        return None
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        return None
    try:
        return f"{boot} {os.readlink(TIME_NAMESPACE)}"
    except OSError:  # a kernel that has none
        return boot


def steady_clock() -> Callable[[], int]:
    """The wall clock as it is now, going on from here without a jump. For what lives in this process only."""
    return clock_from(wall_ms() - boot_ms())


def clock_from(offset_ms: int) -> Callable[[], int]:
    """`boot_ms` with something added, in one call: every claim asks for the time."""
    if BOOT_CLOCK is None or _is_faked():
        return lambda: boot_ms() + offset_ms
    read_ns, boot_clock = time.clock_gettime_ns, BOOT_CLOCK
    return lambda: read_ns(boot_clock) // 1_000_000 + offset_ms
