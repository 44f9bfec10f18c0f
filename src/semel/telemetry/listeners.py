"""Listeners that need no extra: a log of your own, and several listeners as one."""

from __future__ import annotations

import logging
from collections.abc import Callable

from semel.core.events import NO_KEY, Event, EventKind
from semel.runtime.durations import CallListener
from semel.runtime.listener import OnEvent, log_event

logger = logging.getLogger("semel")


class LogListener:
    """Logs every event to a logger of your choice, also those that go to the logger `semel` at level DEBUG only.

    The fields are attributes of the log record (`semel_event`, `semel_key`, `semel_tenant`, …); the key is a digest.
    """

    def __init__(self, name: str = "semel.events", level: int = logging.INFO) -> None:
        self._logger = logging.getLogger(name)
        self._level = level

    def __call__(self, event: Event) -> None:
        if self._logger.isEnabledFor(self._level):
            log_event(self._logger, self._level, event)


class Listeners:
    """Several listeners as one: `on_event=Listeners(PrometheusListener(), LogListener())`.

    If one fails, that is logged, and the others are still called.
    """

    def __init__(self, *listeners: OnEvent) -> None:
        self._listeners = listeners
        self._of_calls = [listener for listener in listeners if isinstance(listener, CallListener)]

    def __call__(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                logger.exception("the listener %r failed on %s", listener, event.kind.value)

    def called(self, call: str, outcome: str, seconds: float) -> None:
        """Tell the listeners that care how long a call on the store took."""
        for listener in self._of_calls:
            try:
                listener.called(call, outcome, seconds)
            except Exception:
                logger.exception("the listener %r failed on the store's %s", listener, call)


def purges(listener: OnEvent) -> Callable[[int], None]:
    """Reports what is purged: `Purger(store, on_purged=purges(listener))`."""
    return lambda count: listener(Event(EventKind.PURGED, NO_KEY, count=count))
