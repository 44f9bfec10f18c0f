"""One connection to PostgreSQL, set up for our statements, in both faces.

Straight to the server, statements are prepared once and planned once. A plan made for an empty table would read the
whole table for ever. These connections run nothing but our statements, so on them the planner may only take the ways
that stay right as the table grows (`queries.py` does the other half of that). A pooler such as PgBouncer in transaction
mode lets nothing survive a transaction: there every statement is planned when it is asked, by the table's size then.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

from psycopg import AsyncRawCursor, ConnectionInfo, RawCursor
from psycopg.errors import DeadlockDetected, SerializationFailure
from psycopg.pq import TransactionStatus

from semel.core.effects import Effect, T, do
from semel.runtime.drive import adrive, drive
from semel.stores.postgres.driver import (
    ArrayDumper,
    AsyncBoundedConnection,
    BoundedConnection,
    Exchange,
    connecting_by,
)
from semel.stores.postgres.failures import failures_of
from semel.stores.postgres.queries import BACKEND
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.sql.statements import Rows, Script, Statement

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


def direct(settings: PostgresSettings) -> str:
    """Asks whether process `$1`, which greeted us, is also the one that answers; if so, the session is ours to set up.

    A pooler greets with a number of its own. With one in between, nothing is set: it would reach another client.
    The second column names the process, so that it can be asked for when its connection is lost.
    """
    session = {**SESSION, "statement_timeout": str(settings.timeout_ms)}
    calls = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in session.items())
    return f"""
SELECT CASE WHEN pg_backend_pid() = $1 THEN ARRAY[{calls}] END IS NOT NULL, {BACKEND}
FROM pg_stat_get_activity(pg_backend_pid())"""


class LinkState:
    """What both faces know about their connection."""

    exchange: Exchange | None = None
    shown = ""
    backend = ""
    """The server's process, if it is known; see `direct`."""
    lost_before = 0  # for a pool, which keeps several


class PostgresLink(LinkState, BoundedConnection):
    """Runs our statements. After a failed exchange it is closed, so that no later call reads its answer."""

    @classmethod
    def open(cls, settings: PostgresSettings, due_s: float | None = None) -> Self:
        by_s = time.monotonic() + settings.timeout_s if due_s is None else due_s
        with failures_of(settings.shown), connecting_by(by_s):
            link = cls.connect(settings.conninfo, autocommit=True, cursor_factory=RawCursor, prepare_threshold=None)
        drive(set_up(link, settings, due_s), link.perform)
        return link

    @property
    def direct(self) -> bool:
        return self.prepare_threshold is not None

    def run(self, script: Script[T]) -> T:
        return drive(script, self.perform)

    @contextmanager
    def alone(self) -> Iterator[None]:
        with failures_of(self.shown), self.transaction():
            yield

    def perform(self, statement: Effect[Any]) -> Rows:
        assert isinstance(statement, Statement)
        tries = 1
        while True:
            try:
                if self.exchange is not None and self.exchange.takes(statement):
                    return self.wait(self.exchange.ask(statement))
                cursor = self.execute(statement.sql.encode(), statement.params or None, binary=True)
                return cursor.fetchall() if cursor.description else []
            except BaseException as error:
                if tries == TRIES_MAX or not rolled_back(error, self.info):
                    self.close()
                    with failures_of(self.shown):
                        raise
                tries += 1


class AsyncPostgresLink(LinkState, AsyncBoundedConnection):
    """The same for coroutines."""

    @classmethod
    async def open(cls, settings: PostgresSettings, due_s: float | None = None) -> Self:
        by_s = time.monotonic() + settings.timeout_s if due_s is None else due_s
        with failures_of(settings.shown), connecting_by(by_s):
            link = await cls.connect(
                settings.conninfo, autocommit=True, cursor_factory=AsyncRawCursor, prepare_threshold=None
            )
        await adrive(set_up(link, settings, due_s), link.perform)
        return link

    @property
    def direct(self) -> bool:
        return self.prepare_threshold is not None

    async def run(self, script: Script[T]) -> T:
        return await adrive(script, self.perform)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        with failures_of(self.shown):
            async with self.transaction():
                yield

    async def perform(self, statement: Effect[Any]) -> Rows:
        assert isinstance(statement, Statement)
        tries = 1
        while True:
            try:
                if self.exchange is not None and self.exchange.takes(statement):
                    return await self.exchange.aask(statement, self.give_up_s, self.timeout_s)
                cursor = await self.execute(statement.sql.encode(), statement.params or None, binary=True)
                return await cursor.fetchall() if cursor.description else []
            except BaseException as error:
                if tries == TRIES_MAX or not rolled_back(error, self.info):
                    await self.close()
                    with failures_of(self.shown):
                        raise
                tries += 1


def set_up(link: PostgresLink | AsyncPostgresLink, settings: PostgresSettings, due_s: float | None) -> Script[None]:
    """What comes after connecting: time-outs, types, and the session's settings if they reach us alone."""
    link.timeout_s, link.due_s, link.shown = settings.timeout_s, due_s, settings.shown
    link.adapters.register_dumper(list, ArrayDumper)
    link.exchange = Exchange.of(link.pgconn)
    if settings.prepare:
        [(is_direct, backend)] = yield from do(Statement(direct(settings), [link.info.backend_pid]))
        if is_direct:
            link.prepare_threshold, link.backend = 0, backend
            if link.exchange is not None:
                link.exchange.prepares = True


def rolled_back(error: BaseException, info: ConnectionInfo) -> bool:
    """Did the server undo a transaction of one statement for the sake of others? Then it may be tried again."""
    undone = isinstance(error, (DeadlockDetected, SerializationFailure))
    return undone and info.transaction_status == TransactionStatus.IDLE
