"""Runs statements of semel on your connection, or on your ORM's session: a driver for each kind.

No driver's package is imported here: a caller with such a connection has imported it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from enum import Enum
from importlib import import_module
from typing import Any, Protocol, TypeGuard, cast

from semel.core.effects import Effect
from semel.errors import StoreMisconfigured
from semel.stores.sql.engine import Engine
from semel.stores.sql.statements import Rows, Statement

NamedRows = list[dict[str, Any]]


class Dialect(Enum):
    """The SQL dialect of a connection."""

    POSTGRES = "PostgreSQL"
    SQLITE = "SQLite"
    MARIADB = "MariaDB"


class RowDriver(Protocol):
    """For threads, on any database that `semel.database` knows."""

    @property
    def dialect(self) -> Dialect: ...
    def check(self) -> None:
        """Refuse a connection whose statements would not be part of one transaction."""
        ...

    def named(self, statement: Statement) -> NamedRows:
        """The rows of a statement by the names of their columns."""
        ...


class AsyncRowDriver(Protocol):
    """For tasks."""

    @property
    def dialect(self) -> Dialect: ...
    async def check(self) -> None: ...
    async def named(self, statement: Statement) -> NamedRows: ...


class Driver(RowDriver, Protocol):
    """For threads, on a database that can hold records."""

    @property
    def engine(self) -> Engine: ...
    def perform(self, statement: Effect[Rows]) -> Rows: ...
    def flush(self) -> None:
        """Send what an ORM still holds back."""
        ...

    def is_lost(self) -> bool:
        """Whether the connection is gone, as far as the driver knows without asking."""
        ...


class AsyncDriver(AsyncRowDriver, Protocol):
    """For tasks."""

    @property
    def engine(self) -> Engine: ...
    async def perform(self, statement: Effect[Rows]) -> Rows: ...
    async def flush(self) -> None: ...
    def is_lost(self) -> bool: ...


class SyncConnection(Protocol):
    """A connection or session for threads, as far as type checkers can tell it from one for tasks."""

    def close(self) -> None: ...


class AsyncConnection(Protocol):
    """A connection or session for tasks."""

    def close(self) -> Awaitable[object]: ...


class DjangoProxy(Protocol):
    """`django.db.connection`: type checkers do not see the methods that it looks up."""

    def __contains__(self, key: Any, /) -> bool: ...


class PooledConnection(Protocol):
    """A connection of asyncpg's pool, which looks up its methods, too."""

    def __getattr__(self, name: str, /) -> Any: ...


AnyRowDriver = RowDriver | AsyncRowDriver
Bind = Callable[[object, str], AnyRowDriver | None]
KINDS = {  # the package that such a connection comes from: the module of semel that knows it
    "django.db": "django",
    "sqlalchemy": "sqlalchemy",
    "psycopg": "psycopg",
    "asyncpg": "asyncpg",
    "aiosqlite": "aiosqlite",
    "sqlite3": "sqlite3",
    "pymysql": "pymysql",
    "aiomysql": "aiomysql",
}
WITHOUT_STORE = ("MySQLdb", "mysql", "mariadb")


def driver_for(connection: object, schema: str = "") -> Driver | AsyncDriver:
    """The driver for a connection or session; `schema` is PostgreSQL's, where the search path does not find it."""
    found = _bound(connection, schema)
    if found is None and _named(connection).partition(".")[0] not in WITHOUT_STORE:
        raise TypeError(
            "within() takes a connection of psycopg, asyncpg, sqlite3, aiosqlite, SQLAlchemy 2 or Django, or a session "
            f"of SQLAlchemy's, not {_named(connection)}"
        )
    if found is None or found.dialect is Dialect.MARIADB:
        raise no_store("MariaDB and MySQL")
    return cast(Driver | AsyncDriver, found)


def is_async_driver(driver: Driver | AsyncDriver) -> TypeGuard[AsyncDriver]:
    return inspect.iscoroutinefunction(driver.perform)


def row_driver_for(connection: object) -> AnyRowDriver:
    """The driver for a connection or session that keeps no records of semel."""
    found = _bound(connection, "")
    if found is None:
        raise TypeError(
            "semel.database takes a connection of psycopg, asyncpg, sqlite3, aiosqlite, PyMySQL, aiomysql, SQLAlchemy "
            f"2 or Django, or a session of SQLAlchemy's, not {_named(connection)}"
        )
    return found


def _bound(connection: object, schema: str) -> AnyRowDriver | None:
    for module, ours in KINDS.items():
        if module in sys.modules:
            bind: Bind = import_module(f"{__name__}.{ours}").bind
            if (found := bind(connection, schema)) is not None:
                return found
    return None


def _named(connection: object) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


def no_store(database: str) -> StoreMisconfigured:
    return StoreMisconfigured(
        f"semel keeps no records in {database} yet, so a transaction there cannot hold one: exactly-once works on "
        "PostgreSQL and SQLite"
    )


def autocommit(way_out: str) -> StoreMisconfigured:
    return StoreMisconfigured(
        f"no transaction is open on this connection: each statement would commit by itself, and the record without "
        f"your writes. {way_out}"
    )
