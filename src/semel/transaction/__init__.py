"""Exactly-once: the record of an operation and what the operation writes, in one database transaction.

`within(connection).operation(key)` is a block inside of your own transaction, and `.receive(message_id)` the block of a
message. `.publish(topic, payload)` adds a message that is sent if your transaction commits. `run` and `arun` also
begin, repeat and end the transactions. A `TransactionStore` does that for the requests of an HTTP front.
"""

from semel.stores.sql.errors import RetryTransaction
from semel.transaction.binding import AsyncBound, Bound, within
from semel.transaction.blocks import TransactionBlock, TransactionOperation
from semel.transaction.http import AsyncTransactionStore, TransactionStore
from semel.transaction.reception import MessageBlock, ReceivedMessage
from semel.transaction.runs import arun, run

__all__ = [
    "AsyncBound",
    "AsyncTransactionStore",
    "Bound",
    "MessageBlock",
    "ReceivedMessage",
    "RetryTransaction",
    "TransactionBlock",
    "TransactionOperation",
    "TransactionStore",
    "arun",
    "run",
    "within",
]
