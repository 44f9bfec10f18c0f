"""aiosqlite: sqlite3 in a thread of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.connections import AsyncDriver, Dialect, NamedRows, autocommit
from semel.connections.sqlite3 import WAY_OUT
from semel.core.effects import Effect
from semel.stores.sql.errors import translated
from semel.stores.sql.statements import Rows, Statement
from semel.stores.sqlite.transaction import SqliteEngine

if TYPE_CHECKING:
    import aiosqlite


def bind(connection: object, schema: str) -> AsyncDriver | None:
    import aiosqlite

    return AiosqliteDriver(connection) if isinstance(connection, aiosqlite.Connection) else None


class AiosqliteDriver:
    dialect = Dialect.SQLITE

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection
        self.engine = SqliteEngine()

    async def check(self) -> None:
        if not self._connection.in_transaction and self._connection.isolation_level is None:
            raise autocommit(WAY_OUT)

    async def perform(self, statement: Effect[Rows]) -> Rows:
        assert isinstance(statement, Statement)
        given: Any = statement.params
        with translated():
            rows: Any = await self._connection.execute_fetchall(statement.sql, given)
        return [_plain(row) for row in rows]

    async def named(self, statement: Statement) -> NamedRows:
        given: Any = statement.params
        with translated():
            async with self._connection.execute(statement.sql, given) as cursor:
                rows = await cursor.fetchall()
                names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, _plain(row), strict=True)) for row in rows]

    async def flush(self) -> None:
        """There is no ORM."""

    def is_lost(self) -> bool:
        """There is no network."""
        return False


def _plain(row: Any) -> tuple[Any, ...]:
    """The connection's own row factory made it: a tuple, a row, or a dictionary in the same order."""
    return tuple(row.values() if isinstance(row, dict) else row)
