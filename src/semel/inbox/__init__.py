"""Messages that take effect once, however often they are delivered."""

from semel.core.messages import Delivery
from semel.core.verdicts import Handling, Settling, Verdict
from semel.inbox.consumers import AsyncConsumer, Consumer
from semel.inbox.ids import field, header
from semel.inbox.inboxes import AsyncInbox, Inbox
from semel.inbox.receipts import LeasedReceipt, ReceiveBlock

__all__ = [
    "AsyncConsumer",
    "AsyncInbox",
    "Consumer",
    "Delivery",
    "Handling",
    "Inbox",
    "LeasedReceipt",
    "ReceiveBlock",
    "Settling",
    "Verdict",
    "field",
    "header",
]
