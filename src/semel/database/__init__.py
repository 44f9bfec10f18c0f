"""What belongs beside a transaction: natural keys, optimistic locking and event sequences, on any connection.

Every function takes a connection or session that `semel.transaction.within` takes, or one to MariaDB, and its names
begin with an `a` for tasks. Nothing here begins or ends a transaction.
"""

from semel.database.calls import aappend, ainsert_or_get, append, aupdate, aupdate_if, insert_or_get, update, update_if
from semel.database.events import StreamConflict
from semel.database.rows import Stale

__all__ = [
    "Stale",
    "StreamConflict",
    "aappend",
    "ainsert_or_get",
    "append",
    "aupdate",
    "aupdate_if",
    "insert_or_get",
    "update",
    "update_if",
]
