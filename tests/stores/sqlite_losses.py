"""Ways to lose the files of an SQLite store while a process has them open, and a process that starts afterwards."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

Lose = Callable[[Path], object]


def beside(path: Path, companion: str) -> Path:
    return path.with_name(path.name + companion)


def unlink_all(path: Path) -> None:
    for companion in ("", "-wal", "-shm"):
        beside(path, companion).unlink()


def replace(path: Path, companion: str = "") -> None:
    """By another file, which has the same bytes."""
    other = beside(path, ".other")
    shutil.copy(beside(path, companion), other)
    os.replace(other, beside(path, companion))


LOSSES: Mapping[str, tuple[Lose, str]] = {
    "all removed": (unlink_all, "records.db is gone"),
    "removed": (Path.unlink, "records.db is gone"),
    "moved away": (lambda path: path.rename(beside(path, ".away")), "records.db is gone"),
    "replaced": (replace, "records.db was replaced by another file"),
    "folder removed": (lambda path: shutil.rmtree(path.parent), "records.db is gone"),
    "folder moved": (lambda path: path.parent.rename(beside(path.parent, ".away")), "records.db is gone"),
    "log removed": (lambda path: beside(path, "-wal").unlink(), "records.db-wal is gone"),
    "log replaced": (lambda path: replace(path, "-wal"), "records.db-wal was replaced by another file"),
    "shared memory removed": (lambda path: beside(path, "-shm").unlink(), "records.db-shm is gone"),
}
"""What happens to the files, and what a process that has them open says of it."""

ASK = """
import sys
from semel import Key, StoreError, open_store
try:
    print(open_store(f"sqlite:///{sys.argv[1]}").claim(
        Key("t", "s", sys.argv[2]), "v1:same", owner="new", lease_ms=9000, retention_ms=9000, takeover=False))
except StoreError as error:
    print(type(error).__name__, error)
"""


def ask_in_a_new_process(path: Path, name: str) -> str:
    """What the first claim of a process that starts now is told."""
    command = [sys.executable, "-c", ASK, str(path), name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
