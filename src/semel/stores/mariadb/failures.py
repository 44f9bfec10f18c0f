"""What the failures of the drivers and of the server mean, in words for the person who runs the server."""

from __future__ import annotations

from pymysql.err import MySQLError  # not pymysql.err: a second copy of it stands there after install_as_MySQLdb()

from semel.errors import StoreError, StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.stores.sql.errors import CHANGED_SINCE_READ, DEADLOCK_FOUND, LOCK_WAIT_TIMEOUT
from semel.stores.sql.migrations import HOW_TO_MIGRATE

GRANTS = (
    "this user needs SELECT, INSERT, UPDATE, DELETE on semel_records and semel_attempts, and SELECT on semel_schema; "
    "and, for an outbox, SELECT, INSERT, UPDATE, DELETE on semel_outbox"
)
READ_ONLY = "a replica, or a server that was made read-only: name the primary"
BINLOG = "the store reads what is committed, which needs a binary log of rows: set binlog_format to ROW or MIXED"
PACKET = "raise max_allowed_packet, or store smaller answers"
LOCKED = "another transaction kept this key locked"
SLOW = "the server took longer than timeout_ms"
MEANINGS: dict[int, tuple[type[StoreError], str]] = {  # the server's numbers: (class, what to do)
    1044: (StoreMisconfigured, GRANTS),
    1045: (StoreMisconfigured, "the user or the password is wrong"),
    1049: (StoreMisconfigured, "create the database first"),
    1054: (StoreMisconfigured, HOW_TO_MIGRATE),
    1142: (StoreMisconfigured, GRANTS),
    1143: (StoreMisconfigured, GRANTS),
    1146: (StoreMisconfigured, HOW_TO_MIGRATE),
    1153: (StoreMisconfigured, PACKET),
    LOCK_WAIT_TIMEOUT: (StoreTimeout, LOCKED),
    1290: (StoreUnavailable, READ_ONLY),
    1665: (StoreMisconfigured, BINLOG),
    1792: (StoreUnavailable, READ_ONLY),
    1836: (StoreUnavailable, READ_ONLY),
    1969: (StoreTimeout, SLOW),
}
ROLLED_BACK = (DEADLOCK_FOUND, CHANGED_SINCE_READ)


def number_of_failure(error: BaseException) -> int:
    """The number that the server or the driver gave; 0 if it gave none."""
    number = error.args[0] if isinstance(error, MySQLError) and error.args else 0
    return number if isinstance(number, int) else 0


def failure_of(error: Exception, shown: str, *, is_late: bool) -> StoreError:
    """A driver's failure as ours. Whatever it was, what was asked may have happened."""
    if isinstance(error, StoreError):
        return error
    kind, way_out = MEANINGS.get(number_of_failure(error), (StoreTimeout if is_late else StoreUnavailable, ""))
    words = error.args[-1] if isinstance(error, MySQLError) and error.args else error
    text = " ".join(str(words).split()) or type(error).__name__
    return kind(f"{shown}: {text}" + (f"; {way_out}" if way_out else ""))
