"""The answer of a request until its transaction has ended: in memory, and past a size in a file that has no name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from tempfile import SpooledTemporaryFile

MEMORY_MAX = 1024 * 1024
"""How much of an answer is held in memory."""
CHUNK_SIZE = 64 * 1024


class AnswerTooLong(RuntimeError):
    """The application answers with more than may be held."""


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
        with suppress(OSError):  # a full disk refuses the rest once more, and no byte of it is wanted
            self._file.close()
