"""Exactly-once: the record of an operation and what the operation writes, in one database transaction.

`within(connection).operation(key)` is a block inside of your own transaction. `run` and `arun` also begin, repeat and
end the transactions. A `TransactionStore` does that for the requests of an HTTP front.
"""

from semel.stores.sql.errors import RetryTransaction
from semel.transaction.binding import Bound, within
from semel.transaction.blocks import TransactionBlock, TransactionOperation
from semel.transaction.http import AsyncTransactionStore, TransactionStore
from semel.transaction.runs import arun, run

__all__ = [
    "AsyncTransactionStore",
    "Bound",
    "RetryTransaction",
    "TransactionBlock",
    "TransactionOperation",
    "TransactionStore",
    "arun",
    "run",
    "within",
]
