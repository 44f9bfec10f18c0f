"""SQLAlchemy 2: connections and sessions, sync and async, on PostgreSQL (psycopg, asyncpg), SQLite and MariaDB.

The async kinds run the same code: SQLAlchemy's own greenlets do that for us.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from semel.connections import AsyncDriver, Dialect, Driver, NamedRows, autocommit, mariadb
from semel.connections.engines import engine_of
from semel.connections.placeholders import named as spelt
from semel.connections.placeholders import positional
from semel.connections.psycopg import refuse_pipeline
from semel.core.effects import Effect
from semel.errors import StoreMisconfigured
from semel.stores.sql.engine import Engine
from semel.stores.sql.errors import engine_refusals_told, translated
from semel.stores.sql.statements import Rows, Statement

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

WAY_OUT = 'Take isolation_level="AUTOCOMMIT" away from this connection or its engine.'
KNOWN = {
    ("postgresql", "psycopg"): Dialect.POSTGRES,
    ("postgresql", "asyncpg"): Dialect.POSTGRES,
    ("sqlite", "pysqlite"): Dialect.SQLITE,
    ("sqlite", "aiosqlite"): Dialect.SQLITE,
    ("mysql", "pymysql"): Dialect.MARIADB,
    ("mysql", "aiomysql"): Dialect.MARIADB,
    ("mariadb", "pymysql"): Dialect.MARIADB,
    ("mariadb", "aiomysql"): Dialect.MARIADB,
}


def bind(connection: object, schema: str) -> Driver | AsyncDriver | None:
    import sqlalchemy
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(connection, scoped_session):
        connection = connection()
    if isinstance(connection, (sqlalchemy.Connection, Session)):
        return SqlalchemyDriver(connection, schema)
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    if isinstance(connection, async_scoped_session):
        connection = connection()
    if isinstance(connection, (AsyncConnection, AsyncSession)):
        return AsyncSqlalchemyDriver(connection, schema)
    return None


class SqlalchemyDriver:
    def __init__(self, source: Connection | Session, schema: str) -> None:
        self._source = source
        below = _dialect(source)
        found = KNOWN.get((below.name, below.driver))
        if found is None:
            known = ", ".join(f"{name}+{driver}" for name, driver in KNOWN)
            raise StoreMisconfigured(f"semel does not know {below.name}+{below.driver} of SQLAlchemy; it knows {known}")
        self.dialect = found
        self._numbered = below.driver == "asyncpg"
        self.engine = engine_of(found, schema)

    def check(self) -> None:
        below: Any = self._connection().connection
        match self.dialect:
            case Dialect.MARIADB:
                return mariadb.check(below.driver_connection, WAY_OUT)
            case Dialect.SQLITE:
                driver = below.driver_connection
                commits_alone = driver.isolation_level is None and not driver.in_transaction
            case Dialect.POSTGRES:
                refuse_pipeline(below.driver_connection, "SQLAlchemy")
                commits_alone = below.dbapi_connection.autocommit
        if commits_alone:
            raise autocommit(WAY_OUT)

    def perform(self, statement: Effect[Rows]) -> Rows:
        assert isinstance(statement, Statement)
        with translated(), engine_refusals_told():
            done = self._connection().exec_driver_sql(*self._spelt(statement))
            return [tuple(row) for row in done] if done.returns_rows else []

    def named(self, statement: Statement) -> NamedRows:
        with translated():
            done = self._connection().exec_driver_sql(*self._spelt(statement))
            return [dict(row) for row in done.mappings()] if done.returns_rows else []

    def execute(self, made: Any) -> NamedRows:
        """Run a statement that SQLAlchemy has made, with the types of its columns."""
        with translated():
            return [dict(row) for row in self._connection().execute(made).mappings()]

    def changed(self, made: Any) -> int:
        """How many rows a statement, ours or SQLAlchemy's, has found."""
        with translated():
            connection = self._connection()
            if isinstance(made, Statement):
                return connection.exec_driver_sql(*self._spelt(made)).rowcount
            return connection.execute(made).rowcount

    def flush(self) -> None:
        from sqlalchemy.orm import Session

        if isinstance(self._source, Session):
            with translated():
                self._source.flush()

    def is_lost(self) -> bool:
        """A session does not say so: its errors do."""
        from sqlalchemy.orm import Session

        return not isinstance(self._source, Session) and (self._source.closed or self._source.invalidated)

    def _connection(self) -> Connection:
        from sqlalchemy.orm import Session

        return self._source.connection() if isinstance(self._source, Session) else self._source

    def _spelt(self, statement: Statement) -> tuple[str, Any]:
        """In the style of the driver below."""
        if self.dialect is Dialect.MARIADB:
            return positional(statement)
        if not statement.params:
            return statement.sql, None
        if isinstance(statement.params, Mapping):
            return statement.sql, dict(statement.params)
        return (statement.sql, tuple(statement.params)) if self._numbered else spelt(statement)


class AsyncSqlalchemyDriver:
    def __init__(self, source: AsyncConnection | AsyncSession, schema: str) -> None:
        from sqlalchemy.ext.asyncio import AsyncSession

        self._source = source
        below = source.sync_session if isinstance(source, AsyncSession) else source.sync_connection
        if below is None:
            raise autocommit("Start the connection first: `async with engine.begin() as connection`.")
        self._driver = SqlalchemyDriver(below, schema)
        self.dialect = self._driver.dialect

    @property
    def engine(self) -> Engine:
        return self._driver.engine

    async def check(self) -> None:
        await self._source.run_sync(lambda _: self._driver.check())

    async def perform(self, statement: Effect[Rows]) -> Rows:
        return await self._source.run_sync(lambda _: self._driver.perform(statement))

    async def named(self, statement: Statement) -> NamedRows:
        return await self._source.run_sync(lambda _: self._driver.named(statement))

    async def execute(self, made: Any) -> NamedRows:
        return await self._source.run_sync(lambda _: self._driver.execute(made))

    async def changed(self, made: Any) -> int:
        return await self._source.run_sync(lambda _: self._driver.changed(made))

    async def flush(self) -> None:
        await self._source.run_sync(lambda _: self._driver.flush())

    def is_lost(self) -> bool:
        return self._driver.is_lost()


def _dialect(source: Connection | Session) -> Any:
    from sqlalchemy.orm import Session

    return source.get_bind().dialect if isinstance(source, Session) else source.dialect
