"""The clocks of stores that have none of their own.

The wall clock shows the time that people read, and it jumps: it is set by hand, by NTP, or after a pause of a virtual
machine. A lease must not jump with it. After a jump forward, running work would be entered again. After a jump back, a
crashed key would stay in progress. So stores count the time since the machine started, which only goes forward, one
second per second. All processes read the same value. It goes on while the machine sleeps, where the system has such a
clock (Linux: CLOCK_BOOTTIME). The offset that turns it into a time that people can read is fixed once.
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
"""A longer time since the start is not real: libfaketime, in tests, fakes every clock but not this file."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE = "/proc/self/ns/time"
"""A container may have a time namespace of its own, with another time since the start."""


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """The time since the machine started. Without such a clock: since a moment that other processes may not share."""
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
    """A name for this start of the machine, equal in all processes with the same `boot_ms`. None if it is not known."""
    if BOOT_CLOCK is None:
        return None
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        return None
    try:
        return f"{boot} {os.readlink(TIME_NAMESPACE)}"
    except OSError:  # the kernel has no such file
        return boot


def steady_clock() -> Callable[[], int]:
    """A clock that begins with the wall clock's time and never jumps. For values of this process only."""
    return clock_from(wall_ms() - boot_ms())


def clock_from(offset_ms: int) -> Callable[[], int]:
    """`boot_ms` plus `offset_ms`, in one call because every claim asks for the time."""
    if BOOT_CLOCK is None or _is_faked():
        return lambda: boot_ms() + offset_ms
    read_ns, boot_clock = time.clock_gettime_ns, BOOT_CLOCK
    return lambda: read_ns(boot_clock) // 1_000_000 + offset_ms
