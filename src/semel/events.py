"""Events about keys and messages, for `on_event=` of every front. `EventKind` says what happened."""

from semel.core.events import ENDS, NO_KEY, OF_MESSAGES, REFUSALS, STARTS, Event, EventKind

__all__ = ["ENDS", "NO_KEY", "OF_MESSAGES", "REFUSALS", "STARTS", "Event", "EventKind"]
