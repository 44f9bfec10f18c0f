"""Whether the files that this process has open are still the ones at their path.

A file that was removed, moved away or replaced stays open. SQLite would go on writing to it, and what is acknowledged
then is lost: every process that starts later opens or makes another file at the path, in which no key is known. The
same is true of the log (`-wal`). Without the shared memory (`-shm`) a process that starts later writes beside this one.

So every commit makes sure that device and inode of the three are those that were there when they were opened. A
difference is final: this process stores nothing any more until it opens the store anew, that is, until it is restarted.
It never goes over to a new file at the same path by itself, because every key would run again.

Three looks cost a tenth of a commit. The folder tells the same in one: its time of change says whether anything in it
was made, removed or renamed. A look at the folder counts only if the folder has been the same for `SETTLED_S`, because
two changes at nearly the same time get the same time. Every `TRUSTED_S` the files are looked at all the same.
"""

from __future__ import annotations

import os
import time

from semel.errors import StoreMisconfigured, StoreUnavailable

Identity = tuple[int, int]
SETTLED_S = 0.02
TRUSTED_S = 0.05
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


class Folder:
    """The folder as it was when the files were looked at, and since when it is like that."""

    def __init__(self, path: str) -> None:
        self._path = os.path.dirname(path)
        self._tells = not os.path.islink(path)  # a link to a file in another folder can be changed in both
        self._seen = self._trusted = (0, 0)
        self._since_s = self._until_s = 0.0

    def is_as_before(self) -> bool:
        """Whether it is the folder of the last look at the files, and nothing was made, removed or renamed since."""
        now_s = time.monotonic()
        found = self.look()
        if found == self._trusted and now_s < self._until_s:
            return True
        if found != self._seen:
            self._seen, self._since_s = found, now_s
        settled = self._tells and now_s - self._since_s >= SETTLED_S
        self._trusted, self._until_s = found, now_s + TRUSTED_S if settled else 0.0
        return False

    def forget(self) -> None:
        """The files could not be looked at, or are not there."""
        self._until_s = 0.0

    def look(self) -> tuple[int, int]:
        """Which one it is, and when it was changed last."""
        try:
            found = os.stat(self._path)
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino ^ found.st_dev


class Files:
    """What the open connections of one process stand on. `Connections` says which are opened and closed."""

    def __init__(self, path: str) -> None:
        real = os.path.realpath(path)  # beside which SQLite keeps the companions
        self._paths = (path, f"{real}-wal", f"{real}-shm")
        self._folder = Folder(path)
        self._seen: tuple[Identity | None, ...] = ()
        self._open = 0
        self._loss = ""

    def check(self) -> None:
        """Refuse to store anything in files that later processes will not find. Every commit asks."""
        if self._loss or not self._folder.is_as_before():
            try:
                self.check_all()  # after the look at the folder: a change in between is found next time
            except BaseException:
                self._folder.forget()
                raise

    def check_all(self) -> None:
        if self._loss or self._look() != self._seen:
            raise self._lost()

    def check_before_opening(self) -> None:
        """Beside others, a connection to other files would damage both."""
        if self._loss or self._open:
            self.check_all()

    def find_loss(self) -> StoreMisconfigured | None:
        """Why a call may have failed."""
        try:
            self.check_before_opening()
            if self._seen and _identity(self._paths[0]) != self._seen[0]:
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
        self._loss = self._loss or f"{self._paths[0]} {REPLACED} {RESTORE}"
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
