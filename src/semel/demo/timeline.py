"""What happened to every key, as lines in a file that outlives each worker."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from semel.core.events import Event
from semel.runtime.clock import wall_ms

READ_MAX = 65_536
ALL = ""
"""The account and key of events that every page shows: a worker was killed, a worker has started."""


class Happening(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. `kind` is the kind of an event of semel's, or one of the demo's own."""

    kind: str
    at_ms: int
    account: str = ALL
    key: str = ALL
    attempt: int = 0
    amount: int = 0
    worker: int = 0


class Timeline:
    """Appends are single writes, so workers and their supervisor may share the file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.touch()

    def add(
        self,
        kind: str,
        account: str = ALL,
        key: str = ALL,
        *,
        attempt: int = 0,
        amount: int = 0,
        worker: int = 0,
    ) -> None:
        line = msgspec.json.encode(Happening(kind, wall_ms(), account, key, attempt, amount, worker)) + b"\n"
        handle = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)

    def hear(self, event: Event) -> None:
        """The middleware's `on_event`."""
        self.add(event.kind.value, event.key.tenant, event.key.name, attempt=event.attempt)

    def end(self) -> int:
        return self._file.stat().st_size

    def after(self, position: int) -> tuple[list[Happening], int]:
        """What was added behind `position`, and the position behind that."""
        with self._file.open("rb") as lines:
            lines.seek(position)
            read = lines.read(READ_MAX)
        whole = read[: read.rfind(b"\n") + 1]
        found = []
        for line in whole.splitlines():
            try:
                found.append(msgspec.json.decode(line, type=Happening))
            except msgspec.MsgspecError:  # a caller that made its position up
                continue
        return found, position + len(whole)
