"""Work in the background: one daemon thread in each process, while there is something to do.

Its queue is bounded, so that a store that is down costs a bounded number of threads and a bounded amount of memory.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from semel.runtime.local import PerProcess

QUEUE_MAX = 1_000
"""More work than this is refused. A claim that is then never released lapses: its key is unknown, which is safe."""


class Background:
    """Does one task after another: while a store is down, only the first task waits for it."""

    def __init__(self) -> None:
        self._queue = PerProcess(Queue)

    def do(self, work: Callable[[], object]) -> bool:
        """Do `work` later. False when the queue is full."""
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
                with suppress(RuntimeError):  # no thread can start now: the queue is done together with the next work
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
