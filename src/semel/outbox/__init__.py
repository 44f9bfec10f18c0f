"""Messages that are published if and only if their transaction commits: the outbox, its relay, and the publishers."""

from semel.core.messages import Message
from semel.outbox.publisher import Publisher, open_publisher

__all__ = ["Message", "Publisher", "open_publisher"]
