"""One connection to PostgreSQL, in both faces, and what its failures mean.

Straight to the server, statements are prepared once and planned once. A plan made for an empty table would read the
whole table for ever, so on these connections, which run nothing but our statements, the planner may only take the ways
that stay right as the table grows (`queries.py` does the other half of that). A pooler such as PgBouncer in transaction
mode lets nothing survive a transaction: there every statement is planned when it is asked, by the table's size then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, Connection, ConnectionInfo, RawCursor
from psycopg.abc import PQGen
from psycopg.errors import DeadlockDetected, SerializationFailure
from psycopg.pq import TransactionStatus

from semel.core.effects import Effect
from semel.errors import StoreMisconfigured, StoreUnavailable
from semel.stores.postgres.arrays import ArrayDumper
from semel.stores.postgres.exchange import Exchange, answered, bounded
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
    "57014": (StoreUnavailable, "the server took longer than timeout_ms"),
}


@contextmanager
def failures_of(shown: str) -> Iterator[None]:
    """Turn a driver's failure into ours. Whatever it was, what was asked may have happened."""
    try:
        yield
    except psycopg.Error as error:
        kind, way_out = MEANINGS.get(error.sqlstate or "", (StoreUnavailable, ""))
        text = str(error).strip() or type(error).__name__
        raise kind(f"{shown}: {text}" + (f"; {way_out}" if way_out else "")) from error
    except (OSError, TimeoutError) as error:
        raise StoreUnavailable(f"{shown}: {str(error) or type(error).__name__}") from error


def direct(settings: Settings) -> str:
    """Asks whether process `$1`, which greeted us, is also the one that answers; if so, the session is ours to set up.

    A pooler greets with a number of its own. With one in between, nothing is set: it would reach somebody else.
    """
    session = {**SESSION, "statement_timeout": str(settings.timeout_ms)}
    calls = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in session.items())
    return f"SELECT CASE WHEN pg_backend_pid() = $1 THEN ARRAY[{calls}] END IS NOT NULL"


class Link(Connection[Row]):
    """Runs our statements. After a failed exchange it is closed, so that nobody reads a late answer."""

    exchange: Exchange
    timeout_s = 5.0
    shown = ""
    lost_before = 0  # for whoever keeps several

    @classmethod
    def open(cls, settings: Settings) -> Self:
        with failures_of(settings.shown):
            link = cls.connect(settings.conninfo, autocommit=True, cursor_factory=RawCursor, prepare_threshold=None)
        link.timeout_s, link.shown = settings.timeout_s, settings.shown
        link.adapters.register_dumper(list, ArrayDumper)
        link.exchange = Exchange(link.pgconn)
        if settings.prepare and link.perform(Statement(direct(settings), [link.info.backend_pid]))[0][0]:
            link.prepare_threshold, link.exchange.prepares = 0, True
        return link

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
        return super().wait(bounded(gen, self.timeout_s), *args, **kwargs)


class AsyncLink(AsyncConnection[Row]):
    """The same for coroutines."""

    exchange: Exchange
    timeout_s = 5.0
    shown = ""
    lost_before = 0  # for whoever keeps several

    @classmethod
    async def open(cls, settings: Settings) -> Self:
        with failures_of(settings.shown):
            link = await cls.connect(
                settings.conninfo, autocommit=True, cursor_factory=AsyncRawCursor, prepare_threshold=None
            )
        link.timeout_s, link.shown = settings.timeout_s, settings.shown
        link.adapters.register_dumper(list, ArrayDumper)
        link.exchange = Exchange(link.pgconn)
        if settings.prepare and (await link.perform(Statement(direct(settings), [link.info.backend_pid])))[0][0]:
            link.prepare_threshold, link.exchange.prepares = 0, True
        return link

    @property
    def direct(self) -> bool:
        return self.prepare_threshold is not None

    async def perform(self, statement: Effect[Any]) -> Rows:
        assert isinstance(statement, Statement)
        tries = 1
        while True:
            try:
                if self.exchange.takes(statement):
                    return await answered(self.exchange.ask(statement), self.pgconn.socket, self.timeout_s)
                cursor = await self.execute(statement.sql.encode(), statement.params or None, binary=True)
                return await cursor.fetchall() if cursor.description else []
            except BaseException as error:
                if tries == TRIES_MAX or not rolled_back(error, self.info):
                    await self.close()
                    with failures_of(self.shown):
                        raise
                tries += 1

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        return await super().wait(bounded(gen, self.timeout_s), *args, **kwargs)


def rolled_back(error: BaseException, info: ConnectionInfo) -> bool:
    """Did the server undo a transaction of one statement for the sake of others? Then it may be tried again."""
    undone = isinstance(error, (DeadlockDetected, SerializationFailure))
    return undone and info.transaction_status == TransactionStatus.IDLE
