"""psycopg 3: connections, sync and async, in or outside of its `transaction()` blocks.

In a `pipeline()` a statement has no rows yet when `execute` returns: ours wait for theirs, and for all before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.connections import AsyncDriver, Dialect, Driver, NamedRows, autocommit
from semel.core.effects import Effect
from semel.errors import StoreMisconfigured
from semel.stores.postgres.transaction import PostgresEngine
from semel.stores.sql.errors import translated
from semel.stores.sql.statements import Rows, Statement

if TYPE_CHECKING:
    import psycopg

WAY_OUT = "Write `with connection.transaction():` around the block, or leave autocommit off."


def bind(connection: object, schema: str) -> Driver | AsyncDriver | None:
    import psycopg

    if isinstance(connection, psycopg.Connection):
        return PsycopgDriver(connection, schema)
    return AsyncPsycopgDriver(connection, schema) if isinstance(connection, psycopg.AsyncConnection) else None


def is_in_pipeline(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return bool(connection.pgconn.pipeline_status)


def refuse_pipeline(connection: object, library: str) -> None:
    """For what reads rows at once, and is not ours to change. Connections of other drivers have no pipelines."""
    if getattr(getattr(connection, "pgconn", None), "pipeline_status", 0):
        raise StoreMisconfigured(
            f"the psycopg connection below {library} is in pipeline mode, where {library} finds no rows: leave the "
            "pipeline() around the block, or give within() a connection of psycopg itself"
        )


def check(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """In a pipeline the connection must be in step, or a statement that was sent would look like a transaction."""
    from psycopg.pq import TransactionStatus

    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise autocommit(WAY_OUT)


class PsycopgDriver:
    dialect = Dialect.POSTGRES

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._connection = connection
        self.engine = PostgresEngine(schema)

    def check(self) -> None:
        if self._connection.autocommit:
            self._catch_up()
        check(self._connection)

    def _catch_up(self) -> None:
        """Wait for the replies to everything that was sent in a pipeline. Errors of earlier statements are raised."""
        if is_in_pipeline(self._connection):
            with self._connection.pipeline() as pipeline:
                pipeline.sync()

    def perform(self, statement: Effect[Rows]) -> Rows:
        from psycopg import RawCursor
        from psycopg.rows import tuple_row

        assert isinstance(statement, Statement)
        with translated(), RawCursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(statement.sql.encode(), statement.params or None)
            self._catch_up()
            return cursor.fetchall() if cursor.description else []

    def named(self, statement: Statement) -> NamedRows:
        from psycopg import RawCursor
        from psycopg.rows import dict_row

        with translated(), RawCursor(self._connection, row_factory=dict_row) as cursor:
            cursor.execute(statement.sql.encode(), statement.params or None)
            self._catch_up()
            return cursor.fetchall() if cursor.description else []

    def flush(self) -> None:
        """There is no ORM."""

    def is_lost(self) -> bool:
        return self._connection.closed


class AsyncPsycopgDriver:
    dialect = Dialect.POSTGRES

    def __init__(self, connection: psycopg.AsyncConnection[Any], schema: str) -> None:
        self._connection = connection
        self.engine = PostgresEngine(schema)

    async def check(self) -> None:
        if self._connection.autocommit:
            await self._catch_up()
        check(self._connection)

    async def _catch_up(self) -> None:
        if is_in_pipeline(self._connection):
            async with self._connection.pipeline() as pipeline:
                await pipeline.sync()

    async def perform(self, statement: Effect[Rows]) -> Rows:
        from psycopg import AsyncRawCursor
        from psycopg.rows import tuple_row

        assert isinstance(statement, Statement)
        with translated():
            async with AsyncRawCursor(self._connection, row_factory=tuple_row) as cursor:
                await cursor.execute(statement.sql.encode(), statement.params or None)
                await self._catch_up()
                return await cursor.fetchall() if cursor.description else []

    async def named(self, statement: Statement) -> NamedRows:
        from psycopg import AsyncRawCursor
        from psycopg.rows import dict_row

        with translated():
            async with AsyncRawCursor(self._connection, row_factory=dict_row) as cursor:
                await cursor.execute(statement.sql.encode(), statement.params or None)
                await self._catch_up()
                return await cursor.fetchall() if cursor.description else []

    async def flush(self) -> None:
        """There is no ORM."""

    def is_lost(self) -> bool:
        return self._connection.closed
