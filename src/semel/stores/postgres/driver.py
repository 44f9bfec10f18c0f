"""One connection to PostgreSQL, in both faces, and what its failures mean.

Straight to the server, statements are prepared once and planned once. A plan made for an empty table would read the
whole table for ever, so on these connections, which run nothing but our statements, the planner may only take the ways
that stay right as the table grows (`queries.py` does the other half of that). A pooler such as PgBouncer in transaction
mode lets nothing survive a transaction: there every statement is planned when it is asked, by the table's size then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, Connection, ConnectionInfo, RawCursor
from psycopg.abc import PQGen, PQGenConn
from psycopg.errors import ConnectionTimeout, DeadlockDetected, SerializationFailure
from psycopg.pq import TransactionStatus

from semel.core.effects import Effect
from semel.errors import StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.stores.postgres.arrays import ArrayDumper
from semel.stores.postgres.exchange import Exchange, Silent, answered, bounded
from semel.stores.postgres.queries import BACKEND
from semel.stores.postgres.settings import Settings
from semel.stores.sql.migrations import HOW_TO_MIGRATE
from semel.stores.sql.statements import Rows, Statement

RV = TypeVar("RV")
Row = tuple[Any, ...]
TRIES_MAX = 5
"""How often a statement is tried that the server rolled back because of others (deadlock, serialization)."""

SESSION = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}
GRANTS = "this user needs SELECT, INSERT, UPDATE, DELETE on semel_records and SELECT on semel_schema"
READ_ONLY = "a standby, or read-only for this user: name the primary, or add target_session_attrs=read-write to the URL"
POOLED = "something between here and the server changes connections: add prepare=false to the URL"
STATEMENT_POOLING = "statement pooling mode"  # how PgBouncer says it, with the code of any broken protocol
TRANSACTION_POOLING = "set pool_mode = transaction (or session) for this database in pgbouncer.ini"
MEANINGS = {  # SQLSTATE: (class, what to do)
    "42P01": (StoreMisconfigured, HOW_TO_MIGRATE),
    "42703": (StoreMisconfigured, HOW_TO_MIGRATE),
    "3F000": (StoreMisconfigured, HOW_TO_MIGRATE),
    "42501": (StoreMisconfigured, GRANTS),
    "22021": (StoreMisconfigured, "the database must have the encoding UTF8"),
    "22P05": (StoreMisconfigured, "the database must have the encoding UTF8"),
    "25006": (StoreUnavailable, READ_ONLY),
    "26000": (StoreUnavailable, POOLED),
    "42P05": (StoreUnavailable, POOLED),
    "57014": (StoreTimeout, "the server took longer than timeout_ms"),
}
NO_LIMIT = float("inf")
CONNECT_BY_S: ContextVar[float] = ContextVar("semel_postgres_connect_by", default=NO_LIMIT)
"""When a connection that is being made is given up. libpq counts in whole seconds, and anew for each address."""


@contextmanager
def failures_of(shown: str) -> Iterator[None]:
    """Turn a driver's failure into ours. Whatever it was, what was asked may have happened."""
    try:
        yield
    except psycopg.Error as error:
        silent = isinstance(error, Silent | ConnectionTimeout)
        kind, way_out = MEANINGS.get(error.sqlstate or "", (StoreTimeout if silent else StoreUnavailable, ""))
        text = " ".join(str(error).split()) or type(error).__name__  # the server's words have lines and tabs
        if STATEMENT_POOLING in text:
            kind, way_out = StoreMisconfigured, TRANSACTION_POOLING
        raise kind(f"{shown}: {text}" + (f"; {way_out}" if way_out else "")) from error
    except (OSError, TimeoutError) as error:
        raise StoreUnavailable(f"{shown}: {str(error) or type(error).__name__}") from error


def direct(settings: Settings) -> str:
    """Asks whether process `$1`, which greeted us, is also the one that answers; if so, the session is ours to set up.

    A pooler greets with a number of its own. With one in between, nothing is set: it would reach somebody else.
    The second column names the process, so that it can be asked for when its connection is lost.
    """
    session = {**SESSION, "statement_timeout": str(settings.timeout_ms)}
    calls = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in session.items())
    return f"""
SELECT CASE WHEN pg_backend_pid() = $1 THEN ARRAY[{calls}] END IS NOT NULL, {BACKEND}
FROM pg_stat_get_activity(pg_backend_pid())"""


@contextmanager
def connecting_by(due_s: float) -> Iterator[None]:
    token = CONNECT_BY_S.set(due_s)
    try:
        yield
    finally:
        CONNECT_BY_S.reset(token)


class Link(Connection[Row]):
    """Runs our statements. After a failed exchange it is closed, so that nobody reads a late answer."""

    exchange: Exchange
    timeout_s = 5.0
    due_s: float | None = None
    """When the call that uses this connection now must have ended; None gives each statement its whole time."""
    shown = ""
    backend = ""
    """The server's process, if it is known; see `direct`."""
    lost_before = 0  # for whoever keeps several

    @classmethod
    def open(cls, settings: Settings, due_s: float | None = None) -> Self:
        by_s = time.monotonic() + settings.timeout_s if due_s is None else due_s
        with failures_of(settings.shown), connecting_by(by_s):
            link = cls.connect(settings.conninfo, autocommit=True, cursor_factory=RawCursor, prepare_threshold=None)
        link.timeout_s, link.due_s, link.shown = settings.timeout_s, due_s, settings.shown
        link.adapters.register_dumper(list, ArrayDumper)
        link.exchange = Exchange(link.pgconn)
        if settings.prepare:
            [(is_direct, backend)] = link.perform(Statement(direct(settings), [link.info.backend_pid]))
            if is_direct:
                link.prepare_threshold, link.exchange.prepares, link.backend = 0, True, backend
        return link

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        return limited(super()._connect_gen(conninfo))

    @property
    def direct(self) -> bool:
        return self.prepare_threshold is not None

    def perform(self, statement: Effect[Any]) -> Rows:
        assert isinstance(statement, Statement)
        tries = 1
        while True:
            try:
                if self.exchange.takes(statement):
                    return self.wait(self.exchange.ask(statement))
                cursor = self.execute(statement.sql.encode(), statement.params or None, binary=True)
                return cursor.fetchall() if cursor.description else []
            except BaseException as error:
                if tries == TRIES_MAX or not rolled_back(error, self.info):
                    self.close()
                    with failures_of(self.shown):
                        raise
                tries += 1

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        return super().wait(bounded(gen, due(self), self.timeout_s), *args, **kwargs)


class AsyncLink(AsyncConnection[Row]):
    """The same for coroutines."""

    exchange: Exchange
    timeout_s = 5.0
    due_s: float | None = None
    """When the call that uses this connection now must have ended; None gives each statement its whole time."""
    shown = ""
    backend = ""
    """The server's process, if it is known; see `direct`."""
    lost_before = 0  # for whoever keeps several

    @classmethod
    async def open(cls, settings: Settings, due_s: float | None = None) -> Self:
        by_s = time.monotonic() + settings.timeout_s if due_s is None else due_s
        with failures_of(settings.shown), connecting_by(by_s):
            link = await cls.connect(
                settings.conninfo, autocommit=True, cursor_factory=AsyncRawCursor, prepare_threshold=None
            )
        link.timeout_s, link.due_s, link.shown = settings.timeout_s, due_s, settings.shown
        link.adapters.register_dumper(list, ArrayDumper)
        link.exchange = Exchange(link.pgconn)
        if settings.prepare:
            [(is_direct, backend)] = await link.perform(Statement(direct(settings), [link.info.backend_pid]))
            if is_direct:
                link.prepare_threshold, link.exchange.prepares, link.backend = 0, True, backend
        return link

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        return limited(super()._connect_gen(conninfo))

    @property
    def direct(self) -> bool:
        return self.prepare_threshold is not None

    async def perform(self, statement: Effect[Any]) -> Rows:
        assert isinstance(statement, Statement)
        tries = 1
        while True:
            try:
                if self.exchange.takes(statement):
                    asking, socket = self.exchange.ask(statement), self.pgconn.socket
                    return await answered(asking, socket, due(self), self.timeout_s)
                cursor = await self.execute(statement.sql.encode(), statement.params or None, binary=True)
                return await cursor.fetchall() if cursor.description else []
            except BaseException as error:
                if tries == TRIES_MAX or not rolled_back(error, self.info):
                    await self.close()
                    with failures_of(self.shown):
                        raise
                tries += 1

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        return await super().wait(bounded(gen, due(self), self.timeout_s), *args, **kwargs)


def due(link: Link | AsyncLink) -> float:
    """When what is asked on `link` now is given up."""
    return time.monotonic() + link.timeout_s if link.due_s is None else link.due_s


def limited(connecting: PQGenConn[RV]) -> PQGenConn[RV]:
    """Connect, to whichever address, by `CONNECT_BY_S`."""
    by_s = CONNECT_BY_S.get()
    return bounded(connecting, by_s, max(0.0, round(by_s - time.monotonic(), 1)))


def rolled_back(error: BaseException, info: ConnectionInfo) -> bool:
    """Did the server undo a transaction of one statement for the sake of others? Then it may be tried again."""
    undone = isinstance(error, (DeadlockDetected, SerializationFailure))
    return undone and info.transaction_status == TransactionStatus.IDLE
