"""How many records and messages a store holds, for gauges: counted in the background, never while a scrape waits."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from semel.core.outbox import CountMessages, OutboxCounts
from semel.runtime.local import PerProcess
from semel.store import Counts, Inspectable, Outboxed, Store
from semel.stores.open import open_store

T = TypeVar("T")
logger = logging.getLogger("semel")
STATES = ("in_progress", "unknown", "succeeded", "failed", "unreadable")
EVERY_S = 10.0
"""How long a count is used again."""
SHARE = 20
"""A count is also used for this many times as long as it took: SQLite and Redis read every record."""
PATIENCE_S = 0.5
"""How long the reader that begins a count waits for it. Every other reader gets the last count at once."""
STALE_S = 120.0
"""An older count is not reported."""


class Census:
    """Counts the records of `store`: a URL, or a store for threads. A store that is away delays no reader."""

    def __init__(self, store: Store | str, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        opened = _open_for_threads(store, "counts")
        if not isinstance(opened, Inspectable):
            raise TypeError(f"a {type(opened).__name__} cannot count its records")
        self._rounds = PerProcess(lambda: CensusRounds(opened.counts, clock_s, "records"))

    def latest(self) -> Counts | None:
        """The last count; None when there is none, or only an old one."""
        return self._rounds.get().latest()


class OutboxCensus:
    """The same for the messages of an outbox."""

    def __init__(self, store: Outboxed | str, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        opened = _open_for_threads(store, "outbox")
        if not isinstance(opened, Outboxed):
            raise TypeError(f"a {type(opened).__name__} has no outbox")
        self._rounds = PerProcess(lambda: CensusRounds(lambda: opened.outbox(CountMessages()), clock_s, "messages"))

    def latest(self) -> OutboxCounts | None:
        """The last count; None when there is none, or only an old one."""
        return self._rounds.get().latest()


def _open_for_threads(store: object, ability: str) -> object:
    if isinstance(store, str) and store.startswith("memory:"):
        raise ValueError(f"{store} names a store of its own, in which there is nothing to count: give the store")
    opened: object = open_store(store) if isinstance(store, str) else store
    if inspect.iscoroutinefunction(getattr(opened, ability, None)):
        raise TypeError(f"a {type(opened).__name__} belongs to an event loop: give its URL, to count in a thread")
    return opened


class CensusRounds(Generic[T]):
    """The counts of one process, one after the other."""

    def __init__(self, count: Callable[[], T], clock_s: Callable[[], float], what: str) -> None:
        self._count_now, self._clock_s, self._what = count, clock_s, what
        self._lock = threading.Lock()
        self._under_way: threading.Thread | None = None
        self._counts: T | None = None
        self._counted_s = 0.0
        self._next_s = clock_s()

    def latest(self) -> T | None:
        with self._lock:
            begun = None
            if self._under_way is None and self._clock_s() >= self._next_s:
                begun = self._under_way = threading.Thread(target=self._count, name="semel-census", daemon=True)
                begun.start()
        if begun is not None:
            begun.join(PATIENCE_S)
        with self._lock:
            return self._counts if self._clock_s() - self._counted_s < STALE_S else None

    def _count(self) -> None:
        began_s, counts = self._clock_s(), None
        try:
            counts = self._count_now()
        except Exception as error:  # this thread has no caller to raise it to
            logger.warning("the %s of the store cannot be counted: %s", self._what, error)
        with self._lock:
            ended_s = self._clock_s()
            self._counts, self._counted_s = counts, ended_s
            self._next_s = ended_s + max(EVERY_S, SHARE * (ended_s - began_s))
            self._under_way = None
