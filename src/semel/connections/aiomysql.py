"""aiomysql: PyMySQL's protocol for tasks."""

from __future__ import annotations

from typing import Any

from semel.connections import AsyncRowDriver, Dialect, NamedRows, mariadb
from semel.connections.placeholders import positional
from semel.stores.sql.errors import translated
from semel.stores.sql.statements import Statement


def bind(connection: object, schema: str) -> AsyncRowDriver | None:
    import aiomysql

    return AiomysqlDriver(connection) if isinstance(connection, aiomysql.Connection) else None


class AiomysqlDriver:
    dialect = Dialect.MARIADB

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def check(self) -> None:
        mariadb.check(self._connection)

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
