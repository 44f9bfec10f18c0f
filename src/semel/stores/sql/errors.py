"""What a database's refusals mean, for every driver.

Only these are translated. Any other error on your connection is your driver's own, and goes on unchanged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from semel.errors import SemelError, StoreError, StoreMisconfigured
from semel.stores.sql.migrations import HOW_TO_MIGRATE

SERIALIZATION, DEADLOCK, LOCK_NOT_AVAILABLE, NO_TABLE, NO_COLUMN = "40001", "40P01", "55P03", "42P01", "42703"
NO_PRIVILEGE = "42501"
GRANTS = (
    "this user needs SELECT, INSERT, UPDATE, DELETE on semel_records and SELECT on semel_schema; and, to publish, "
    "SELECT and INSERT on semel_outbox"
)
DUPLICATE, LOCK_WAIT_TIMEOUT, DEADLOCK_FOUND, CHANGED_SINCE_READ = 1062, 1205, 1213, 1020  # MariaDB's
STATEMENT_TIMEOUT, NO_SAVEPOINT = 1969, 1305
NO_TABLE_NUMBERS, NO_PRIVILEGE_NUMBERS = (1054, 1146), (1142, 1143)
GONE, REFUSED = ("08", "57P01", "57P02", "57P03"), ("22", "23", "44")
"""How the states of a lost connection, and of values that the database will never take, begin."""
SERVER_GONE, SERVER_LOST = 2006, 2013  # MariaDB's
INTEGRITY_NUMBERS = (1048, DUPLICATE, 1406, 1451, 1452, 4025)  # MariaDB's
MARIADB_ERRORS = ("pymysql.err", "MySQLdb.err", "MySQLdb", "MySQLdb._exceptions")
"""Where the classes of errors are from: aiomysql raises PyMySQL's, Django is on mysqlclient, or on PyMySQL."""
CHAIN_MAX = 10


class RetryTransaction(StoreError):
    """The database gave this transaction up for the sake of others: roll it back, and run all of it again.

    The same key is right for that: nothing of this attempt was kept. `semel.transaction.run` does it for you.
    """


class LockWaitEnded(RetryTransaction):
    """The bound on waiting for another transaction was reached. Our scripts know what that means.

    Where they did not set the bound, the connection's own was reached: then it is a reason to run all of it again.
    """


class SavepointGone(StoreError):
    """The transaction in which the savepoint was set has ended. For our scripts, which know what that means."""


class Duplicate(StoreError):
    """A unique key is in the way, on MariaDB, which has no ON CONFLICT. For our scripts; `error` is the driver's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def duplicates_told() -> Iterator[None]:
    """Let MariaDB's refusal of a second row be a `Duplicate`."""
    try:
        yield
    except Exception as error:
        if _told(error).number != DUPLICATE:
            raise
        raise Duplicate(error) from error


@contextmanager
def engine_refusals_told() -> Iterator[None]:
    """Let MariaDB's refusals of our scripts' statements be told to the scripts: a wait that ended, or a second row."""
    try:
        yield
    except Exception as error:
        number = _told(error).number
        if number not in (LOCK_WAIT_TIMEOUT, STATEMENT_TIMEOUT, DUPLICATE):
            raise
        raise (Duplicate(error) if number == DUPLICATE else LockWaitEnded(_waited_too_long(error))) from error


@contextmanager
def translated() -> Iterator[None]:
    """Let a driver's error be what it means to the caller."""
    try:
        yield
    except Exception as error:
        meaning = _meaning(error)
        if meaning is None:
            raise
        raise meaning from error


def retry_of(error: BaseException) -> RetryTransaction | None:
    """What to raise instead of `error` where the whole transaction should run again."""
    if isinstance(error, RetryTransaction):
        return error
    state, code, text, number = _told(error)
    if state == SERIALIZATION:
        return RetryTransaction(
            "the database cannot put this transaction in an order with others (40001): roll back and run all of it "
            "again, with the same key"
        )
    if state == DEADLOCK:
        return RetryTransaction(
            "this transaction and another one waited for each other (40P01): roll back and run all of it again, with "
            "the same key"
        )
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return RetryTransaction(
            "another connection has written since this transaction first read: roll back and run all of it again, and "
            "begin with BEGIN IMMEDIATE, which takes the turn to write before anything is read"
        )
    if code & 0xFF == sqlite3.SQLITE_BUSY:
        return RetryTransaction(
            f"another connection kept its turn to write for too long ({text}): roll back and run all of it again, or "
            "raise wait=, or the timeout of your connection"
        )
    if number in (DEADLOCK_FOUND, CHANGED_SINCE_READ):
        return RetryTransaction(
            f"MariaDB has rolled this transaction back for the sake of another one ({number}: {text}): run all of it "
            "again"
        )
    if number == LOCK_WAIT_TIMEOUT:
        # We do not roll back ourselves: code that goes on would then commit the second half without the first.
        return RetryTransaction(_waited_too_long(error))
    return None


def _waited_too_long(error: BaseException) -> str:
    told = _told(error)
    limit = "innodb_lock_wait_timeout" if told.number == LOCK_WAIT_TIMEOUT else "max_statement_time"
    return (
        f"another transaction kept its locks for longer than {limit} ({told.number}: {told.text}): roll back, and run "
        "all of it again. MariaDB has undone the last statement only: a COMMIT now would keep the rest of this "
        "transaction without it"
    )


def is_connection_lost(error: BaseException) -> bool:
    """Whether the connection was lost, so that the database has rolled the transaction back."""
    if any(getattr(at, "connection_invalidated", False) for at in _chain(error)):  # SQLAlchemy says so
        return True
    state, _, _, number = _told(error)
    if state:
        return state.startswith(GONE)
    # Every error that a PostgreSQL server reports has a state; psycopg's own have none.
    dropped = any(type(at).__module__ == "psycopg" and type(at).__name__ == "OperationalError" for at in _chain(error))
    return dropped or number in (SERVER_GONE, SERVER_LOST)


def is_refused_for_good(error: BaseException) -> bool:
    """Whether the database would refuse the same writes again: a constraint, or a value that does not fit."""
    state, code, _, number = _told(error)
    return state.startswith(REFUSED) or code & 0xFF == sqlite3.SQLITE_CONSTRAINT or number in INTEGRITY_NUMBERS


def _meaning(error: Exception) -> SemelError | None:
    if isinstance(error, SemelError):
        return None
    if (retry := retry_of(error)) is not None:
        return retry
    state, code, text, number = _told(error)
    if state == LOCK_NOT_AVAILABLE:
        return LockWaitEnded(text)
    missing = state in (NO_TABLE, NO_COLUMN) or (number in NO_TABLE_NUMBERS and "semel_" in text)
    if missing or (code == sqlite3.SQLITE_ERROR and "no such table: semel" in text):
        return StoreMisconfigured(f"{text}: the tables of semel must be in this database; {HOW_TO_MIGRATE}")
    if (state == NO_PRIVILEGE or number in NO_PRIVILEGE_NUMBERS) and "semel_" in text:
        return StoreMisconfigured(f"{text}: {GRANTS}")
    if (code == sqlite3.SQLITE_ERROR and "no such savepoint" in text) or number == NO_SAVEPOINT:
        return SavepointGone(text)
    return None


class _Told(NamedTuple):
    """What a driver's error says: a SQLSTATE, SQLite's code, or MariaDB's number, and its text."""

    state: str = ""
    code: int = 0
    text: str = ""
    number: int = 0


def _told(error: BaseException) -> _Told:
    """Looks through what ORMs wrap around the driver's error."""
    for at in _chain(error):
        if type(at).__module__ in MARIADB_ERRORS and len(at.args) == 2:
            number, text = at.args
            return _Told(text=str(text), number=number if isinstance(number, int) else 0)
        state = getattr(at, "sqlstate", None)
        code = getattr(at, "sqlite_errorcode", None)
        if isinstance(state, str) or isinstance(code, int):
            text = str(at).strip().partition("\n")[0]
            return _Told(state if isinstance(state, str) else "", code if isinstance(code, int) else 0, text)
    return _Told()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it wraps."""
    at: BaseException | None = error
    for _ in range(CHAIN_MAX):
        if at is None:
            return
        yield at
        wrapped = getattr(at, "orig", None)
        at = wrapped if isinstance(wrapped, BaseException) else at.__cause__
