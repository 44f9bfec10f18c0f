"""psycopg 3: connections, sync and async, in or outside of its `transaction()` blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.core.effects import Effect
from semel.stores.sql.statements import Rows, Statement
from semel.transaction.drivers import AsyncDriver, Dialect, Driver, NamedRows, autocommit
from semel.transaction.errors import translated
from semel.transaction.postgres import PostgresEngine

if TYPE_CHECKING:
    import psycopg

WAY_OUT = "Write `with connection.transaction():` around the block, or leave autocommit off."


def bind(connection: object, schema: str) -> Driver | AsyncDriver | None:
    import psycopg

    if isinstance(connection, psycopg.Connection):
        return PsycopgDriver(connection, schema)
    return AsyncPsycopgDriver(connection, schema) if isinstance(connection, psycopg.AsyncConnection) else None


def check(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    from psycopg.pq import TransactionStatus

    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise autocommit(WAY_OUT)


class PsycopgDriver:
    dialect = Dialect.POSTGRES

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._connection = connection
        self.engine = PostgresEngine(schema)

    def check(self) -> None:
        check(self._connection)

    def perform(self, statement: Effect[Rows]) -> Rows:
        from psycopg import RawCursor
        from psycopg.rows import tuple_row

        assert isinstance(statement, Statement)
        with translated(), RawCursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.execute(statement.sql.encode(), statement.params or None)
            return cursor.fetchall() if cursor.description else []

    def named(self, statement: Statement) -> NamedRows:
        from psycopg import RawCursor
        from psycopg.rows import dict_row

        with translated(), RawCursor(self._connection, row_factory=dict_row) as cursor:
            cursor.execute(statement.sql.encode(), statement.params or None)
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
        check(self._connection)

    async def perform(self, statement: Effect[Rows]) -> Rows:
        from psycopg import AsyncRawCursor
        from psycopg.rows import tuple_row

        assert isinstance(statement, Statement)
        with translated():
            async with AsyncRawCursor(self._connection, row_factory=tuple_row) as cursor:
                await cursor.execute(statement.sql.encode(), statement.params or None)
                return await cursor.fetchall() if cursor.description else []

    async def named(self, statement: Statement) -> NamedRows:
        from psycopg import AsyncRawCursor
        from psycopg.rows import dict_row

        with translated():
            async with AsyncRawCursor(self._connection, row_factory=dict_row) as cursor:
                await cursor.execute(statement.sql.encode(), statement.params or None)
                return await cursor.fetchall() if cursor.description else []

    async def flush(self) -> None:
        """There is no ORM."""

    def is_lost(self) -> bool:
        return self._connection.closed
