"""Work that nobody waits for: one daemon thread in each process, while there is something to do.

What waits for it is bounded, so that a store that is down costs neither threads nor memory without end.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from semel.runtime.local import PerProcess

QUEUE_MAX = 1_000
"""More than this is refused. An abandoned claim that nobody releases lapses: its key is unknown then, which is safe."""


class Background:
    """One thing after another: while a store is down, the first one finds out for all."""

    def __init__(self) -> None:
        self._queue = PerProcess(Queue)

    def do(self, work: Callable[[], object]) -> bool:
        """Have `work` done later; False when too much is waiting already."""
        return self._queue.get().add(work)


class Queue:
    """The thread of a `Background` in one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], object]] = deque()
        self._running = False

    def add(self, work: Callable[[], object]) -> bool:
        with self._lock:
            if len(self._waiting) >= QUEUE_MAX:
                return False
            self._waiting.append(work)
            if not self._running:
                with suppress(RuntimeError):  # no thread can be had now: what waits is done with what comes next
                    threading.Thread(target=self._run, name="semel-background", daemon=True).start()
                    self._running = True
            return True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                work = self._waiting.popleft()
            try:
                work()
            except Exception:
                logging.getLogger("semel").exception("work in the background failed")
