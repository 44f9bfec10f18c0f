"""PyMySQL, to MariaDB. It runs what `semel.database` asks for, and no claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.connections import Dialect, NamedRows, RowDriver, mariadb
from semel.connections.placeholders import positional
from semel.stores.sql.errors import translated
from semel.stores.sql.statements import Statement

if TYPE_CHECKING:
    import pymysql


def bind(connection: object, schema: str) -> RowDriver | None:
    import pymysql

    return PymysqlDriver(connection) if isinstance(connection, pymysql.Connection) else None


class PymysqlDriver:
    dialect = Dialect.MARIADB

    def __init__(self, connection: pymysql.Connection[Any]) -> None:
        self._connection = connection

    def check(self) -> None:
        mariadb.check(self._connection)

    def named(self, statement: Statement) -> NamedRows:
        from pymysql.cursors import Cursor

        with translated(), self._connection.cursor(Cursor) as cursor:
            cursor.execute(*positional(statement))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def changed(self, statement: Statement) -> int:
        """How many rows the statement found, or changed: the connection's flags say which."""
        from pymysql.cursors import Cursor

        with translated(), self._connection.cursor(Cursor) as cursor:
            return cursor.execute(*positional(statement))
