"""Looks at the file without touching it: it is opened read-only, and neither made nor migrated."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from semel.runtime.clock import find_boot, wall_ms
from semel.runtime.drive import drive
from semel.store import Finding
from semel.stores import examination
from semel.stores.sqlite.clock import Anchor, clock_of, find_anchor
from semel.stores.sqlite.driver import runner, store_errors
from semel.stores.sqlite.schema import MIGRATIONS, SQLITE_MIN
from semel.stores.sqlite.settings import SqliteSettings

MOUNTS = "/proc/self/mounts"
SKEW_MS_MAX = 1_000
"""More is not a matter of rounding: the wall clock was set."""
NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "fuse.sshfs", "davfs")
PROMISE = Finding(
    "promise",
    "info",
    "at-most-once on one machine: what was acknowledged survives kill -9 of every process; "
    "other machines cannot share the file",
)


def examine(settings: SqliteSettings) -> Iterator[Finding]:
    yield _version()
    yield _place(settings.path)
    if os.path.exists(settings.path):
        yield from _file(settings)
    else:
        yield Finding("file", "info", f"{settings.path} does not exist yet; it is made on first use, or by migrate")
        yield _clock(None)
    yield _synchronous(settings)
    yield PROMISE


def _version() -> Finding:
    found, needed = sqlite3.sqlite_version, ".".join(map(str, SQLITE_MIN))
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        return Finding("version", "problem", f"SQLite {found}; {needed} is needed", "use a newer Python")
    if loses_writes(sqlite3.sqlite_version_info):
        return Finding(
            "version",
            "info",
            f"SQLite {found} can lose what one connection writes while another brings the log back into the file "
            "(https://sqlite.org/wal.html#walresetbug); semel's processes keep each other from that",
            "let nothing else write to the file or checkpoint it, or use a Python with SQLite 3.51.3 or later",
        )
    return Finding("version", "ok", f"SQLite {found}")


def loses_writes(version: tuple[int, int, int]) -> bool:
    """Whether it has the bug that was mended in 3.51.3, and in two older lines."""
    mended = {(3, 44): (3, 44, 6), (3, 50): (3, 50, 7)}
    return version < mended.get(version[:2], (3, 51, 3))


def _place(path: str) -> Finding:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return Finding("place", "problem", f"the folder {folder} does not exist", "create it, or name another file")
    kind = _filesystem(folder)
    if kind is None:
        return Finding("place", "info", "the kind of file system is not known here: SQLite needs a local disk")
    if kind.startswith(NETWORK):
        return Finding(
            "place",
            "problem",
            f"{folder} is on a network file system ({kind}), where SQLite's locks do not hold: keys can run twice",
            "move the file to a local disk, or use postgresql:// for several machines",
        )
    return Finding("place", "ok", f"{folder} is on a local file system ({kind})")


def _filesystem(folder: str) -> str | None:
    """The kind of the file system that `folder` is on, where the system tells."""
    try:
        mounts = [line.split()[1:3] for line in Path(MOUNTS).read_text().splitlines()]
    except OSError:
        return None
    real = os.path.realpath(folder)
    places = [(place.replace("\\040", " "), kind) for place, kind in mounts]
    within = [(len(place), kind) for place, kind in places if real == place or real.startswith(place.rstrip("/") + "/")]
    return max(within)[1] if within else None


def _file(settings: SqliteSettings) -> Iterator[Finding]:
    path = settings.path
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        yield Finding(
            "file", "warning", f"others may open {path} (mode {mode:o}), and answers are in it", f"chmod 600 {path}"
        )
    else:
        yield Finding("file", "ok", f"{path}, {os.path.getsize(path)} bytes, open to its owner only")
    # A read-only reader of a log that is not there would make it, and leave it behind.
    in_use = os.path.exists(f"{path}-wal")
    how = "mode=ro" if in_use else "immutable=1"
    with store_errors(settings), closing(sqlite3.connect(f"{Path(path).as_uri()}?{how}", uri=True)) as connection:
        [journal] = connection.execute("PRAGMA journal_mode").fetchone()
        known = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'semel_schema'"
        newest = "SELECT number, readable_from FROM semel_schema ORDER BY number DESC LIMIT 1"
        row = connection.execute(newest).fetchone() if connection.execute(known).fetchone() else None
        yield _journal(str(journal), in_use=in_use)
        yield examination.schema(row, MIGRATIONS[-1].number)
        yield _clock(drive(find_anchor(), runner(connection)))
        if row:
            asked = "SELECT 1 FROM semel_records WHERE digest = 0"
            yield examination.latency(lambda: connection.execute(asked).fetchone())


def _journal(mode: str, *, in_use: bool) -> Finding:
    if mode == "wal":
        return Finding("journal", "ok", "journal mode WAL: readers and the writer do not block each other")
    why = f"journal mode {mode}" if in_use else "no process has the file open"
    return Finding("journal", "info", f"{why}; it is in WAL mode as soon as it is used")


def _clock(anchor: Anchor | None) -> Finding:
    if find_boot() is None:
        return Finding(
            "clock",
            "warning",
            "the store goes by this machine's wall clock, because the system does not say which start it is in",
            "let nothing set the clock by more than a lease while keys are in progress",
        )
    if anchor is None:
        return Finding("clock", "ok", "the store's clock is this machine's, and does not jump")
    skew_ms = clock_of(anchor)() - wall_ms()
    detail = f"the store's clock is {skew_ms:+d} ms from the wall clock"
    if abs(skew_ms) < SKEW_MS_MAX:
        return Finding("clock", "ok", f"{detail}, and does not jump")
    return Finding(
        "clock",
        "info",
        f"{detail}, which was set after the file was first used since this machine was started: "
        "leases and retention are not affected, times that are shown are",
        "they agree again after the next start of the machine",
    )


def _synchronous(settings: SqliteSettings) -> Finding:
    if settings.synchronous == "full":
        return Finding("synchronous", "ok", "synchronous=full: what was acknowledged survives a power cut")
    return Finding(
        "synchronous",
        "info",
        "synchronous=normal: survives kill -9; a power cut may undo the last transactions, and their keys run again",
        "add ?synchronous=full to the URL, for one fsync per group of writes",
    )
