"""sqlite3, as it comes with Python."""

from __future__ import annotations

import sqlite3

from semel.connections import Dialect, Driver, NamedRows, autocommit
from semel.core.effects import Effect
from semel.stores.sql.errors import translated
from semel.stores.sql.statements import Rows, Statement
from semel.stores.sqlite.transaction import SqliteEngine

WAY_OUT = 'Say "BEGIN IMMEDIATE" first, or leave isolation_level and autocommit as they are by default.'


def bind(connection: object, schema: str) -> Driver | None:
    return SqliteDriver(connection) if isinstance(connection, sqlite3.Connection) else None


def check(connection: sqlite3.Connection) -> None:
    """With an isolation level, the module itself says BEGIN before the first write, which is our claim."""
    begins = connection.isolation_level is not None and getattr(connection, "autocommit", -1) is not True
    if not connection.in_transaction and not begins:
        raise autocommit(WAY_OUT)


class SqliteDriver:
    dialect = Dialect.SQLITE

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.engine = SqliteEngine()

    def check(self) -> None:
        check(self._connection)

    def perform(self, statement: Effect[Rows]) -> Rows:
        assert isinstance(statement, Statement)
        with translated():
            cursor = self._connection.cursor()
            cursor.row_factory = None
            return cursor.execute(statement.sql, statement.params).fetchall()

    def named(self, statement: Statement) -> NamedRows:
        with translated():
            cursor = self._connection.cursor()
            cursor.row_factory = None
            rows = cursor.execute(statement.sql, statement.params).fetchall()
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in rows]

    def flush(self) -> None:
        """There is no ORM."""

    def is_lost(self) -> bool:
        """There is no network."""
        return False
