"""Messages that are published if and only if their transaction commits: the outbox, its relay, and the publishers."""

from semel.core.messages import Message
from semel.outbox.publisher import Publisher, open_publisher
from semel.outbox.relay import Relay

__all__ = ["Message", "Publisher", "Relay", "open_publisher"]
