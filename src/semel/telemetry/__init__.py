"""Listeners for `on_event`: a log of your own, or several listeners as one.

Metrics and traces are in `semel.telemetry.prometheus` and `semel.telemetry.opentelemetry`, which need their extras.
"""

from semel.runtime.durations import CallListener
from semel.telemetry.listeners import Listeners, LogListener, purges

__all__ = ["CallListener", "Listeners", "LogListener", "purges"]
