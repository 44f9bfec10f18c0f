"""What belongs beside a transaction: natural keys, optimistic locking and event sequences, on any connection.

Every function takes a connection or session that `semel.transaction.within` takes, or one to MariaDB. For tasks there
is the same function with an `a` in front of its name. Nothing here begins or ends a transaction.
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
