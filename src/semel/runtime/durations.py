"""Times the store's calls, for listeners that ask for it."""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Protocol, runtime_checkable

from semel.core.events import Event
from semel.errors import RecordUnreadable, StoreError, StoreMisconfigured

logger = logging.getLogger("semel")
CALLS = ("claim", "renew", "complete", "release", "read")
"""The calls that are timed."""


@runtime_checkable
class CallListener(Protocol):
    """A listener that is also told how long calls on the store take."""

    def __call__(self, event: Event, /) -> None: ...

    def called(self, call: str, outcome: str, seconds: float) -> None:
        """`call` is claim, renew, complete, release or read; `outcome` is ok, unavailable, misconfigured, …"""
        ...


class Timing:
    """Times one call and tells the listener. A failure of the listener changes nothing."""

    __slots__ = ("_call", "_listener", "_started_s")

    def __init__(self, listener: CallListener, call: str) -> None:
        self._listener = listener
        self._call = call

    def __enter__(self) -> None:
        self._started_s = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        seconds = time.perf_counter() - self._started_s
        try:
            self._listener.called(self._call, "ok" if error is None else _outcome(error), seconds)
        except Exception:
            logger.exception("the listener failed on the store's %s", self._call)


def _outcome(error: BaseException) -> str:
    match error:
        case RecordUnreadable():
            return "unreadable"
        case StoreMisconfigured():
            return "misconfigured"
        case StoreError():
            return "unavailable"
        case Exception():
            return "error"
        case _:
            return "cancelled"
