"""Listeners: which events `on_event` gets, and which of them are logged."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from semel.core.calls import CallConclusion, CallEvent
from semel.core.events import Event, EventKind
from semel.core.verdicts import VERDICTS, Settling

OnEvent = Callable[[Event], None]
logger = logging.getLogger("semel")

LEVELS: Mapping[EventKind, int] = MappingProxyType(
    {
        **dict.fromkeys((EventKind.STORE_FAILED, EventKind.NOT_STORED, EventKind.UNREADABLE), logging.ERROR),
        EventKind.MESSAGE_DEAD: logging.ERROR,
        **dict.fromkeys((EventKind.MESSAGE_FAILED, EventKind.RELAY_PAUSED), logging.WARNING),
        **dict.fromkeys((EventKind.LEFT, EventKind.UNKNOWN), logging.WARNING),
        **dict.fromkeys((EventKind.LEASE_LOST, EventKind.SUPERSEDED), logging.WARNING),
    }
)
"""Events for an operator: the store fails, or work ended and its outcome is not known here."""
CALM = frozenset(
    handling.name.lower()
    for handling, row in VERDICTS.items()
    if row.settling in (Settling.ACKNOWLEDGE, Settling.DELIVER_AGAIN)
)
"""Ends of deliveries that need no operator: the others become dead letters, or stop the consumer."""

DOUBTFUL = CallConclusion.DOUBTFUL.name.lower()


def logged(on_event: OnEvent) -> OnEvent:
    """Log each event (at its level, most of them for debugging only), then tell `on_event`.

    A failure of `on_event` is logged: it must change neither the key nor the answer.
    """

    def tell(event: Event) -> None:
        level = LEVELS.get(event.kind, logging.DEBUG)
        is_dead = event.kind is EventKind.DELIVERY_JUDGED and event.handling not in CALM
        if is_dead or (isinstance(event, CallEvent) and event.outcome == DOUBTFUL):
            level = logging.WARNING
        if logger.isEnabledFor(level):
            log_event(logger, level, event)
        if on_event is not ignore:
            try:
                on_event(event)
            except Exception:
                logger.exception("the listener failed on %s", event.kind.value)

    # Code that looks for further abilities of the listener finds it here.
    return functools.update_wrapper(tell, on_event, assigned=(), updated=())


def log_event(logger: logging.Logger, level: int, event: Event) -> None:
    """Log one line for people, with `semel_…` attributes on the log record for formatters that write JSON."""
    # Pass text, not the event: some handlers (Sentry's, for one) keep the `repr` of arguments, which shows the name.
    logger.log(level, "%s", str(event), extra={f"semel_{name}": value for name, value in event.fields().items()})


def ignore(event: Event) -> None:
    """The listener of a front without `on_event`."""
