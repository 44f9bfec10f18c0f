"""Holds the answer of a request until its transaction has ended: in memory, and above a size in a temporary file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from tempfile import SpooledTemporaryFile

MEMORY_MAX = 1024 * 1024
"""How much of an answer is held in memory."""
CHUNK_SIZE = 64 * 1024


class AnswerTooLong(RuntimeError):
    """The application's answer is larger than what may be held."""


class HeldBody:
    """What the application has answered so far. Nothing of it is sent before the commit."""

    def __init__(self, size_max: int) -> None:
        self.size = 0
        self._size_max = size_max
        self._file = SpooledTemporaryFile[bytes](max_size=MEMORY_MAX)

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > self._size_max:
            raise AnswerTooLong(
                f"the answer has more than held_max={self._size_max} bytes. Under exactly-once it is held until the "
                "transaction is committed: raise held_max= of the TransactionStore, or let the answer name a resource "
                "that can be read afterwards"
            )
        self._file.write(chunk)

    def whole(self) -> bytes:
        return b"".join(self.chunks())

    def chunks(self) -> Iterator[bytes]:
        """All of it, in parts."""
        self._file.seek(0)
        while chunk := self._file.read(CHUNK_SIZE):
            yield chunk

    def close(self) -> None:
        with suppress(OSError):  # closing flushes, which fails again on a full disk
            self._file.close()
