"""The clock of a file: all processes of a machine agree on it, and it does not jump.

It is the time since the machine was started, plus an offset that is kept in the file. The first process that opens the
file after a start of the machine sets the offset, so that the clock shows the wall clock's time. It is not changed
until the next start. So a jump of the wall clock changes nothing: no lease lapses early or late, no retention ends
early or late, in every process, also in one that was started after the jump. What people are shown differs from
the wall clock by the jump until the next start.

After a start all earlier executors are dead, and the wall clock is taken anew. If it is behind the newest record, it
cannot be right: the clock then goes on where it must have been, at the end of the last lease. A clock battery that is
empty does that, on a machine that asks NTP only later.

Other designs: one offset for each process lets two processes disagree by the jump, so that one of them takes the
other's fresh records for expired. To follow the wall clock and move the running leases at a jump would need a look at
the file in every transaction, to find out whether another process has moved them already. It would let answers expire
early, too.

Where a machine does not say which start it is in (macOS, Windows, a container without /proc), processes cannot know
that they share a clock, and the file goes by the wall clock.
"""

from __future__ import annotations

from random import SystemRandom

from msgspec import Struct

from semel.core.effects import do
from semel.runtime.clock import boot_ms, clock_from, find_boot, wall_ms
from semel.store import Clock
from semel.stores.sql.statements import Script, Statement

STARTS_MAX = 64
"""Of so many starts of the machine, or of machines, the offset is kept. It takes a row each."""
# No migration: it says something about this machine, no record needs it, and older versions do without.
CREATE = """CREATE TABLE IF NOT EXISTS semel_clock (
    boot TEXT NOT NULL UNIQUE,
    offset_ms INTEGER NOT NULL,
    mark INTEGER NOT NULL
)"""
KNOWN = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'semel_clock'"
FIND = "SELECT offset_ms, mark FROM semel_clock WHERE boot = :boot"
SET = "INSERT INTO semel_clock VALUES (:boot, :offset, :mark)"
FORGET = "DELETE FROM semel_clock WHERE rowid <= (SELECT max(rowid) FROM semel_clock) - :starts"
# Rows are added at the end, so this is about the time when the file was used last. Neither reads more than a row.
NEWEST = "SELECT created_ms FROM semel_records ORDER BY rowid DESC LIMIT 1"
LAST_LEASE = "SELECT max(lease_until_ms) FROM semel_records WHERE state = 0"


class Anchor(Struct, frozen=True):
    """What is added to the time since the start of the machine. No other file has the same mark."""

    offset_ms: int
    mark: int


def find_anchor() -> Script[Anchor | None]:
    if not (yield from do(Statement(KNOWN))):
        return None
    rows = yield from do(Statement(FIND, {"boot": _boot()}))
    return Anchor(*rows[0]) if rows else None


def set_anchor() -> Script[Anchor]:
    """Under the write lock: of several processes that come first, one sets it."""
    yield from do(Statement(CREATE))
    found = yield from find_anchor()
    if found is not None:
        return found
    now_ms = yield from _begin_with(wall_ms())
    anchor = Anchor(now_ms - boot_ms(), SystemRandom().getrandbits(63))
    yield from do(Statement(SET, {"boot": _boot(), "offset": anchor.offset_ms, "mark": anchor.mark}))
    yield from do(Statement(FORGET, {"starts": STARTS_MAX}))
    return anchor


def find_clock() -> Script[Clock | None]:
    """The clock of the file; None if no process has set it since the machine was started."""
    if find_boot() is None:
        return wall_ms
    anchor = yield from find_anchor()
    return None if anchor is None else clock_of(anchor)


def make_clock() -> Script[Clock]:
    """The same under the write lock, where it can be set."""
    return (yield from find_clock()) or clock_of((yield from set_anchor()))


def clock_of(anchor: Anchor) -> Clock:
    return wall_ms if find_boot() is None else clock_from(anchor.offset_ms)


def _begin_with(now_ms: int) -> Script[int]:
    for (newest_ms,) in (yield from do(Statement(NEWEST))):
        if now_ms < newest_ms:
            [(last_ms,)] = yield from do(Statement(LAST_LEASE))
            return max(int(newest_ms), int(last_ms or 0))
    return now_ms


def _boot() -> str:
    return find_boot() or ""
