"""aiomysql: PyMySQL's protocol for tasks."""

from __future__ import annotations

from typing import Any

from semel.connections import AsyncDriver, Dialect, NamedRows, mariadb
from semel.connections.placeholders import positional
from semel.core.effects import Effect
from semel.stores.mariadb.transaction import MariadbEngine
from semel.stores.sql.errors import engine_refusals_told, translated
from semel.stores.sql.statements import Rows, Statement


def bind(connection: object, schema: str) -> AsyncDriver | None:
    import aiomysql

    return AiomysqlDriver(connection) if isinstance(connection, aiomysql.Connection) else None


class AiomysqlDriver:
    dialect = Dialect.MARIADB

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.engine = MariadbEngine()

    async def check(self) -> None:
        mariadb.check(self._connection)

    async def perform(self, statement: Effect[Rows]) -> Rows:
        from aiomysql import Cursor

        assert isinstance(statement, Statement)
        with translated(), engine_refusals_told():
            async with self._connection.cursor(Cursor) as cursor:
                await cursor.execute(*positional(statement))
                rows: Rows = await cursor.fetchall() if cursor.description else []
                return rows

    async def named(self, statement: Statement) -> NamedRows:
        from aiomysql import Cursor

        with translated():
            async with self._connection.cursor(Cursor) as cursor:
                await cursor.execute(*positional(statement))
                names = [column[0] for column in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]

    async def changed(self, statement: Statement) -> int:
        from aiomysql import Cursor

        with translated():
            async with self._connection.cursor(Cursor) as cursor:
                return int(await cursor.execute(*positional(statement)))

    async def flush(self) -> None:
        """There is no ORM."""

    def is_lost(self) -> bool:
        return bool(self._connection.closed)
