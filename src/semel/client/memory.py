"""A journal that ends with its process: the model, a dict and a lock."""

from __future__ import annotations

import threading
from typing import TypeVar

from semel.core import journal_model
from semel.core.journal import JournalCall
from semel.core.journal_model import IntentBook
from semel.store import Clock

T = TypeVar("T")


class MemoryJournal:
    """For tests, and for callers that only want one sender at a time: no key outlives the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._book = IntentBook()

    def answer(self, call: JournalCall[T]) -> T:
        with self._lock:
            self._book, reply = journal_model.answer(self._book, call, self._clock())
            return reply

    def close(self) -> None:
        """Nothing to close."""
