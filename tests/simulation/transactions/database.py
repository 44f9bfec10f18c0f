"""The simulated database: committed rows, open transactions, and what waits for what, under READ COMMITTED.

It knows the statements of the real `PostgresEngine` by their text and does what PostgreSQL does for each of them. A
statement is a generator: it yields the transaction that is in its way, and goes on when that one has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.stores.postgres import transaction_queries as queries
from semel.stores.postgres.transaction import PostgresEngine
from semel.stores.postgres.transaction_queries import BOOK, KNOWN, LIMIT_WAIT, TABLE, UNLIMIT
from semel.stores.sql.rows import COLUMNS, IN_PROGRESS

if TYPE_CHECKING:
    from simulation.transactions.world import TransactionWorld

Row = tuple[Any, ...]
Rows = list[Row]
Meaning = Generator["Transaction", None, Rows]
ENGINE = PostgresEngine("")
CLAIM, READ = queries.claim(TABLE, BOOK), queries.read(TABLE, BOOK)
INSIST, COMPLETE = queries.insist(TABLE), queries.complete(TABLE)
VERSION = [KNOWN, KNOWN]
"""The last entry in the book of migrations."""
NO_RECORD = (None,) * len(COLUMNS)
WRITE = "INSERT INTO effects (entry, part) VALUES ($1, $2)"
STATE, OWNER, CREATED, LEASE, EXPIRES, REFUSE = map(
    COLUMNS.index, ("state", "owner", "created_ms", "lease_until_ms", "expires_ms", "refuse_ms")
)
SERIALIZATION, DEADLOCK, CANCELLED, LOCKED, ABORTED, CHECK = "40001", "40P01", "57014", "55P03", "25P02", "23514"


class DatabaseError(Exception):
    """What a driver raises: the server's error, by its SQLSTATE. Class 08 is a lost connection."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class Transaction:
    """An open transaction of one session, with the versions that only it sees."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: dict[bytes, Row] = {}
        self.effects: list[tuple[int, int]] = []
        self.locks: set[int] = set()
        self.lock_timeout_ms = 0
        self.aborted = False
        self.waits_for: Transaction | None = None
        self._savepoints: dict[str, tuple[dict[bytes, Row], list[tuple[int, int]], set[int], int]] = {}

    @property
    def mark(self) -> str:
        return str(self.number)

    def save(self, name: str) -> None:
        self._savepoints[name] = (dict(self.records), list(self.effects), set(self.locks), self.lock_timeout_ms)

    def go_back(self, name: str) -> None:
        self.records, self.effects, self.locks, self.lock_timeout_ms = self._savepoints[name]
        self.save(name)
        self.aborted = False

    def is_in_circle(self) -> bool:
        """Whether it waits, by others, for itself."""
        at = self.waits_for
        while at is not None and at is not self:
            at = at.waits_for
        return at is self


class Database:
    """What is committed, and who holds what is not."""

    def __init__(self, world: TransactionWorld) -> None:
        self.world = world
        self.records: dict[bytes, Row] = {}
        self.effects: list[tuple[int, int]] = []
        self.open: list[Transaction] = []
        self.ending: list[Transaction] = []
        """Those whose rows are free, and whose advisory locks are not yet."""
        self._count = 0
        self._waiting: dict[str, Callable[[Transaction, Sequence[Any]], Meaning]] = {
            CLAIM: self._claim,
            INSIST: self._insist,
        }
        self._plain: dict[str, Callable[[Transaction, Sequence[Any]], Rows]] = {
            COMPLETE: self._complete,
            READ: self._read,
            WRITE: self._write,
            LIMIT_WAIT: self._limit_wait,
            UNLIMIT: self._limit_wait,
        }
        self._plain["SAVEPOINT semel"] = partial(self._save, "semel")
        self._plain["ROLLBACK TO SAVEPOINT semel"] = partial(self._go_back, "semel")
        self._plain["RELEASE SAVEPOINT semel"] = self._forget_savepoint

    def now_ms(self) -> int:
        return self.world.database_ms()

    def begin(self) -> Transaction:
        self._count += 1
        transaction = Transaction(self._count)
        self.open.append(transaction)
        return transaction

    def execute(self, transaction: Transaction, sql: str, params: Sequence[Any]) -> Meaning:
        """What a statement does. A transaction in which one has failed takes no other."""
        if transaction.aborted and not sql.startswith("ROLLBACK TO"):
            raise DatabaseError(ABORTED, "current transaction is aborted")
        if sql in self._waiting:
            return (yield from self._waiting[sql](transaction, params))
        return self._plain[sql](transaction, params)

    def commit(self, transaction: Transaction) -> bool:
        """PostgreSQL answers to the COMMIT of a failed transaction, too: it rolls back then."""
        if not transaction.aborted:
            self.world.oracle.commits(transaction)
            self.records |= transaction.records
            self.effects += transaction.effects
        self.end(transaction)
        return not transaction.aborted

    def end(self, transaction: Transaction) -> None:
        """Its versions are gone, and a moment later its locks."""
        self.open.remove(transaction)
        self.ending.append(transaction)
        self.world.oracle.ends(transaction)
        self.world.server.let_go(transaction)

    def purge(self) -> int:
        """What the ordinary store of this database does now and then; rows that a transaction holds are skipped."""
        old = [digest for digest, row in self.records.items() if self._is_past(row) and self._writer(digest) is None]
        for digest in old:
            del self.records[digest]
        return len(old)

    # Rows and locks

    def _is_past(self, row: Row) -> bool:
        now_ms = self.now_ms()
        return bool(row[EXPIRES] + row[REFUSE] <= now_ms and row[LEASE] <= now_ms)

    def _writer(self, digest: bytes) -> Transaction | None:
        """The transaction that has an uncommitted version of this row."""
        return next((each for each in self.open if digest in each.records), None)

    def _seen(self, transaction: Transaction, digest: bytes) -> Row | None:
        return transaction.records.get(digest) or self.records.get(digest)

    def _is_locked(self, transaction: Transaction, lock: int) -> bool:
        """Whether another transaction has this advisory lock."""
        return self._locker(transaction, lock) is not None

    def _locker(self, transaction: Transaction, lock: int) -> Transaction | None:
        others = (each for each in (*self.open, *self.ending) if each is not transaction)
        return next((each for each in others if lock in each.locks), None)

    def _turn(self, transaction: Transaction, digest: bytes) -> Generator[Transaction, None, None]:
        """The unique key: wait for the transaction that has a version of this row."""
        while (writer := self._writer(digest)) not in (None, transaction):
            assert writer is not None
            yield writer

    def _insert(self, transaction: Transaction, params: Sequence[Any], now_ms: int) -> tuple[str, int]:
        digest, tenant, scope, name, fingerprint, owner, lease_ms, retention_ms = params[:8]
        transaction.records[digest] = (
            *(tenant, scope, name, fingerprint, IN_PROGRESS, owner, 1),
            *(now_ms, now_ms + lease_ms, now_ms + retention_ms, None, None, 0),
        )
        self.world.oracle.inserted(transaction, transaction.records[digest])
        return transaction.mark, now_ms + lease_ms

    # What each statement means

    def _claim(self, transaction: Transaction, params: Sequence[Any]) -> Meaning:
        digest, lock, now_ms = params[0], params[8], self.now_ms()
        seen = self._seen(transaction, digest)
        if seen is not None:
            return [(VERSION, None, None, now_ms, *seen)]
        if self._is_locked(transaction, lock):
            return [(VERSION, None, None, now_ms, *NO_RECORD)]
        transaction.locks.add(lock)
        yield from self._turn(transaction, digest)
        if self._seen(transaction, digest) is not None:  # committed since the statement began, which does not see it
            return [(VERSION, None, None, now_ms, *NO_RECORD)]
        return [(VERSION, *self._insert(transaction, params, now_ms), now_ms, *NO_RECORD)]

    def _insist(self, transaction: Transaction, params: Sequence[Any]) -> Meaning:
        digest, lock = params[0], params[8]
        if "pg_advisory_xact_lock" in INSIST:
            yield from self._lock(transaction, lock)
        now_ms = self.now_ms()
        yield from self._turn(transaction, digest)
        seen = self._seen(transaction, digest)
        if seen is not None and not (seen[EXPIRES] + seen[REFUSE] <= now_ms and seen[LEASE] <= now_ms):
            return []
        return [self._insert(transaction, params, now_ms)]

    def _lock(self, transaction: Transaction, lock: int) -> Generator[Transaction, None, None]:
        """Wait for an advisory lock."""
        while (locker := self._locker(transaction, lock)) is not None:
            yield locker
        transaction.locks.add(lock)

    def _complete(self, transaction: Transaction, params: Sequence[Any]) -> Rows:
        digest, owner, state, format, payload, refuse_ms, retention_ms, mark = params
        row = self._seen(transaction, digest)
        if row is None or row[OWNER] != owner or row[STATE] != IN_PROGRESS or mark != transaction.mark:
            return []
        now_ms = self.now_ms()
        changed = {"state": state, "format": format, "payload": payload, "refuse_ms": refuse_ms}
        changed |= {"lease_until_ms": now_ms, "expires_ms": now_ms + retention_ms}
        transaction.records[digest] = tuple(changed.get(name, value) for name, value in zip(COLUMNS, row, strict=True))
        return [(1,)]

    def _read(self, transaction: Transaction, params: Sequence[Any]) -> Rows:
        row = self._seen(transaction, params[0])
        return [(VERSION, None, None, self.now_ms(), *(NO_RECORD if row is None else row))]

    def _write(self, transaction: Transaction, params: Sequence[Any]) -> Rows:
        transaction.effects.append((params[0], params[1]))
        return []

    def _limit_wait(self, transaction: Transaction, params: Sequence[Any]) -> Rows:
        before, transaction.lock_timeout_ms = transaction.lock_timeout_ms, int(params[0])
        return [(str(before), params[0])]

    def _save(self, name: str, transaction: Transaction, params: Sequence[Any]) -> Rows:
        transaction.save(name)
        return []

    def _go_back(self, name: str, transaction: Transaction, params: Sequence[Any]) -> Rows:
        transaction.go_back(name)
        if not transaction.records:
            self.world.oracle.ends(transaction)
        self.world.server.wake(transaction)
        return []

    def _forget_savepoint(self, transaction: Transaction, params: Sequence[Any]) -> Rows:
        return []
