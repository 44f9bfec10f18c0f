"""Whether the files that this process has open are still the ones at their path.

A file that was removed, moved away or replaced stays open. SQLite would go on writing to it, and what is acknowledged
then is lost: every process that starts later opens or makes another file at the path, in which no key is known. The
same is true of the log (`-wal`). Without the shared memory (`-shm`) a process that starts later writes beside this one.

So every commit compares the device and the inode of each path with what was there when it was opened. A difference is
final: this process stores nothing any more until it opens the store anew, that is, until it is restarted. It never
goes over to a new file at the same path by itself, because every key would run again.
"""

from __future__ import annotations

import os

from semel.errors import StoreMisconfigured, StoreUnavailable

Identity = tuple[int, int]
COMPANIONS = ("-wal", "-shm")
GONE = "is gone: it was removed or moved away while this process had it open, and"
REPLACED = "was replaced by another file while this process had it open, and"
RESTORE = (
    "nothing is stored any more. Put the file back if you still have it, then restart every process that uses it; "
    "without it they begin a new file, in which no key is known"
)
STOP = (
    "nothing is stored any more. Stop every process that uses it, not with kill -9: the last one that ends brings what "
    "only it still has into the file; then start them again"
)


class Files:
    """What the open connections of one process stand on. `Connections` says which are opened and closed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._paths = tuple(f"{path}{companion}" for companion in ("", *COMPANIONS))
        self._seen: tuple[Identity | None, ...] = ()
        self._open = 0
        self._loss = ""

    def check(self) -> None:
        """Refuse to store anything in files that later processes will not find. Every commit asks."""
        if self._loss or self._look() != self._seen:
            raise self._lost()

    def check_before_opening(self) -> None:
        """Beside others, a connection to other files would damage both."""
        if self._loss or self._open:
            self.check()

    def find_loss(self) -> StoreMisconfigured | None:
        """Why a call may have failed."""
        try:
            self.check_before_opening()
            if self._seen and _identity(self._path) != self._seen[0]:
                raise self._lost()
        except StoreMisconfigured as loss:
            return loss
        except StoreUnavailable:
            pass
        return None

    def add(self) -> None:
        """A connection was opened, and has read. The companions are new ones if it is the only one."""
        found = self._look()
        known = self._seen if self._open else self._seen[:1]
        if found[: len(known)] != known:
            raise self._lost()
        self._seen = found
        self._open += 1

    def add_companions(self) -> None:
        """The only connection has turned the file to WAL."""
        self._seen = self._look()

    def remove(self) -> None:
        """A connection is about to be closed. After the last one, SQLite removes the companions."""
        self._open -= 1

    def replaced(self) -> StoreMisconfigured:
        """Another file has the same place and the same inode."""
        self._loss = self._loss or f"{self._path} {REPLACED} {RESTORE}"
        return StoreMisconfigured(self._loss)

    def _look(self) -> tuple[Identity | None, ...]:
        return tuple(map(_identity, self._paths))

    def _lost(self) -> StoreMisconfigured:
        if not self._loss:
            found = self._look()
            number = next((n for n, seen in enumerate(self._seen) if found[n] != seen), 0)
            what = GONE if found[number] is None else REPLACED
            self._loss = f"{self._paths[number]} {what} {STOP if number else RESTORE}"
        return StoreMisconfigured(self._loss)


def _identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be looked at: {error.strerror}") from error
    return found.st_dev, found.st_ino
