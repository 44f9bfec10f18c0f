"""SQLAlchemy 2: connections and sessions, sync and async, on PostgreSQL (psycopg, asyncpg) and SQLite.

The async kinds run the same code: SQLAlchemy's own greenlets do that for us.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from semel.core.effects import Effect
from semel.errors import StoreMisconfigured
from semel.stores.sql.statements import Rows, Statement
from semel.transaction.drivers import AsyncDriver, Driver, NamedRows, autocommit, no_store
from semel.transaction.drivers.placeholders import named as spelt
from semel.transaction.errors import translated
from semel.transaction.postgres import PostgresEngine
from semel.transaction.sqlite import SqliteEngine

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

WAY_OUT = 'Take isolation_level="AUTOCOMMIT" away from this connection or its engine.'
KNOWN = {"psycopg": "postgresql", "asyncpg": "postgresql", "pysqlite": "sqlite", "aiosqlite": "sqlite"}


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
        dialect = _dialect(source)
        if dialect.name in ("mysql", "mariadb"):
            raise no_store("MariaDB and MySQL")
        if KNOWN.get(dialect.driver) != dialect.name:
            known = ", ".join(f"{name}+{driver}" for driver, name in KNOWN.items())
            raise StoreMisconfigured(
                f"exactly-once does not know {dialect.name}+{dialect.driver} of SQLAlchemy; it knows {known}"
            )
        self._numbered = dialect.driver == "asyncpg"
        self.engine = PostgresEngine(schema) if dialect.name == "postgresql" else SqliteEngine()

    def check(self) -> None:
        below: Any = self._connection().connection
        if isinstance(self.engine, SqliteEngine):
            driver = below.driver_connection
            commits_alone = driver.isolation_level is None and not driver.in_transaction
        else:
            commits_alone = below.dbapi_connection.autocommit
        if commits_alone:
            raise autocommit(WAY_OUT)

    def perform(self, statement: Effect[Rows]) -> Rows:
        assert isinstance(statement, Statement)
        with translated():
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

    def flush(self) -> None:
        from sqlalchemy.orm import Session

        if isinstance(self._source, Session):
            with translated():
                self._source.flush()

    def _connection(self) -> Connection:
        from sqlalchemy.orm import Session

        return self._source.connection() if isinstance(self._source, Session) else self._source

    def _spelt(self, statement: Statement) -> tuple[str, Any]:
        """In the style of the driver below."""
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
        self.engine = self._driver.engine

    async def check(self) -> None:
        await self._source.run_sync(lambda _: self._driver.check())

    async def perform(self, statement: Effect[Rows]) -> Rows:
        return await self._source.run_sync(lambda _: self._driver.perform(statement))

    async def named(self, statement: Statement) -> NamedRows:
        return await self._source.run_sync(lambda _: self._driver.named(statement))

    async def execute(self, made: Any) -> NamedRows:
        return await self._source.run_sync(lambda _: self._driver.execute(made))

    async def flush(self) -> None:
        await self._source.run_sync(lambda _: self._driver.flush())


def _dialect(source: Connection | Session) -> Any:
    from sqlalchemy.orm import Session

    return source.get_bind().dialect if isinstance(source, Session) else source.dialect
