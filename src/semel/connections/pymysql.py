"""PyMySQL, to MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.connections import Dialect, Driver, NamedRows, mariadb
from semel.connections.placeholders import positional
from semel.core.effects import Effect
from semel.stores.mariadb.transaction import MariadbEngine
from semel.stores.sql.errors import engine_refusals_told, translated
from semel.stores.sql.statements import Rows, Statement

if TYPE_CHECKING:
    import pymysql


def bind(connection: object, schema: str) -> Driver | None:
    import pymysql

    return PymysqlDriver(connection) if isinstance(connection, pymysql.Connection) else None


class PymysqlDriver:
    dialect = Dialect.MARIADB

    def __init__(self, connection: pymysql.Connection[Any]) -> None:
        self._connection = connection
        self.engine = MariadbEngine()

    def check(self) -> None:
        mariadb.check(self._connection)

    def perform(self, statement: Effect[Rows]) -> Rows:
        from pymysql.cursors import Cursor

        assert isinstance(statement, Statement)
        with translated(), engine_refusals_told(), self._connection.cursor(Cursor) as cursor:
            cursor.execute(*positional(statement))
            return cursor.fetchall() if cursor.description else []

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

    def flush(self) -> None:
        """There is no ORM."""

    def is_lost(self) -> bool:
        return not self._connection.open
