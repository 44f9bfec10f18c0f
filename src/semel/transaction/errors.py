"""What a database's refusals mean, whichever driver reports them.

Only these are translated. Any other error on your connection is your driver's own, and goes on unchanged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from semel.errors import SemelError, StoreError, StoreMisconfigured
from semel.stores.sql.migrations import HOW_TO_MIGRATE

SERIALIZATION, DEADLOCK, LOCK_NOT_AVAILABLE, NO_TABLE, NO_COLUMN = "40001", "40P01", "55P03", "42P01", "42703"
CHAIN_MAX = 10


class RetryTransaction(StoreError):
    """The database gave this transaction up for the sake of others: roll it back, and run all of it again.

    The same key is right for that: nothing of this attempt was kept. `semel.transaction.run` does it for you.
    """


class LockWaitEnded(StoreError):
    """The bound on waiting for another transaction was reached. For our scripts, which know what that means."""


class SavepointGone(StoreError):
    """The transaction in which the savepoint was set has ended. For our scripts, which know what that means."""


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
    state, code, text = _told(error)
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
    return None


def _meaning(error: Exception) -> SemelError | None:
    if isinstance(error, SemelError):
        return None
    if (retry := retry_of(error)) is not None:
        return retry
    state, code, text = _told(error)
    if state == LOCK_NOT_AVAILABLE:
        return LockWaitEnded(text)
    if state in (NO_TABLE, NO_COLUMN) or (code == sqlite3.SQLITE_ERROR and "no such table: semel" in text):
        return StoreMisconfigured(f"{text}: the tables of semel must be in this database; {HOW_TO_MIGRATE}")
    if code == sqlite3.SQLITE_ERROR and "no such savepoint" in text:
        return SavepointGone(text)
    return None


def _told(error: BaseException) -> tuple[str, int, str]:
    """The SQLSTATE, SQLite's error code and the text of the driver's error, through what ORMs wrap around it."""
    at: BaseException | None = error
    for _ in range(CHAIN_MAX):
        if at is None:
            break
        state = getattr(at, "sqlstate", None)
        code = getattr(at, "sqlite_errorcode", None)
        if isinstance(state, str) or isinstance(code, int):
            text = str(at).strip().partition("\n")[0]
            return state if isinstance(state, str) else "", code if isinstance(code, int) else 0, text
        wrapped = getattr(at, "orig", None)
        at = wrapped if isinstance(wrapped, BaseException) else at.__cause__
    return "", 0, ""
