"""Listeners: what is told about keys to `on_event`, and what of it is logged."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from semel.core.events import Event, EventKind

OnEvent = Callable[[Event], None]
logger = logging.getLogger("semel")

LEVELS: Mapping[EventKind, int] = MappingProxyType(
    {
        **dict.fromkeys((EventKind.STORE_FAILED, EventKind.NOT_STORED, EventKind.UNREADABLE), logging.ERROR),
        **dict.fromkeys((EventKind.LEFT, EventKind.UNKNOWN), logging.WARNING),
        **dict.fromkeys((EventKind.LEASE_LOST, EventKind.SUPERSEDED), logging.WARNING),
    }
)
"""What an operator must hear of: that the store fails, or that work ended without its outcome being known here."""


def logged(on_event: OnEvent) -> OnEvent:
    """Log each event (at its level, most of them for debugging only), then tell `on_event`."""

    def tell(event: Event) -> None:
        level = LEVELS.get(event.kind, logging.DEBUG)
        if logger.isEnabledFor(level):
            log_event(logger, level, event)
        if on_event is not ignore:
            on_event(event)

    # Who asks for further abilities of the listener finds it behind this.
    return functools.update_wrapper(tell, on_event, assigned=(), updated=())


def log_event(logger: logging.Logger, level: int, event: Event) -> None:
    """As a line for people, and as `semel_…` attributes of the log record for formatters that write JSON."""
    # Text and no event: some handlers (Sentry's, for one) keep the `repr` of arguments, which has the key's name.
    logger.log(level, "%s", str(event), extra={f"semel_{name}": value for name, value in event.fields().items()})


def ignore(event: Event) -> None:
    """The listener of those who do not listen."""


def tell(on_event: OnEvent, event: Event) -> None:
    """A listener that fails must not change what becomes of the key, or of its answer."""
    try:
        on_event(event)
    except Exception:
        logger.exception("the listener failed on %s", event.kind.value)
