"""Events about keys, messages and calls, for `on_event=` of every front. `EventKind` says what happened."""

from semel.core.calls import CallConclusion, CallEvent
from semel.core.events import ENDS, NO_KEY, OF_CALLS, OF_MESSAGES, REFUSALS, STARTS, Event, EventKind

__all__ = [
    "ENDS",
    "NO_KEY",
    "OF_CALLS",
    "OF_MESSAGES",
    "REFUSALS",
    "STARTS",
    "CallConclusion",
    "CallEvent",
    "Event",
    "EventKind",
]
