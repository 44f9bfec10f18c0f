"""asyncpg: connections, also those of a pool, inside of `connection.transaction()`."""

from __future__ import annotations

from typing import Any

from semel.connections import AsyncDriver, Dialect, NamedRows, autocommit
from semel.core.effects import Effect
from semel.stores.postgres.transaction import PostgresEngine
from semel.stores.sql.errors import translated
from semel.stores.sql.statements import Rows, Statement


def bind(connection: object, schema: str) -> AsyncDriver | None:
    import asyncpg.pool

    known = (asyncpg.Connection, asyncpg.pool.PoolConnectionProxy)
    return AsyncpgDriver(connection, schema) if isinstance(connection, known) else None


class AsyncpgDriver:
    dialect = Dialect.POSTGRES

    def __init__(self, connection: Any, schema: str) -> None:
        self._connection = connection
        self.engine = PostgresEngine(schema)

    async def check(self) -> None:
        if not self._connection.is_in_transaction():
            raise autocommit("Write `async with connection.transaction():` around the block.")

    async def perform(self, statement: Effect[Rows]) -> Rows:
        assert isinstance(statement, Statement)
        with translated():
            if not statement.params:
                await self._connection.execute(statement.sql)
                return []
            return [tuple(row) for row in await self._connection.fetch(statement.sql, *statement.params)]

    async def named(self, statement: Statement) -> NamedRows:
        with translated():
            return [dict(row) for row in await self._connection.fetch(statement.sql, *statement.params)]

    async def flush(self) -> None:
        """There is no ORM."""

    def is_lost(self) -> bool:
        return bool(self._connection.is_closed())
