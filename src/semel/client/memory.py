"""A journal that ends with its process: the model, a dict and a lock."""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TypeVar

from semel.core import journal_model
from semel.core.journal import IntentEntry, IntentId, JournalCall, OfIntent
from semel.core.journal_model import IntentBook
from semel.store import Clock

T = TypeVar("T")


class MemoryJournal:
    """For tests, and for callers that only want one sender at a time: no key outlives the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[IntentId, IntentEntry] = {}

    def answer(self, call: JournalCall[T]) -> T:
        with self._lock:
            names = (call.id,) if isinstance(call, OfIntent) else tuple(self._entries)
            found = {name: entry for name in names if (entry := self._entries.get(name))}
            before = IntentBook(MappingProxyType(found))
            after, reply = journal_model.answer(before, call, self._clock())
            for name in found.keys() - after.entries.keys():
                del self._entries[name]
            self._entries.update(after.entries)
            return reply

    def close(self) -> None:
        """Nothing to close."""
