"""Runs statements of semel on your connection, or on your ORM's session: a driver for each kind.

No driver's package is imported here: a caller with such a connection has imported it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from enum import Enum
from importlib import import_module
from typing import Any, Protocol, TypeGuard

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


class Driver(Protocol):
    """For threads."""

    @property
    def dialect(self) -> Dialect: ...
    @property
    def engine(self) -> Engine: ...
    def check(self) -> None:
        """Refuse a connection whose statements would not be part of one transaction."""
        ...

    def perform(self, statement: Effect[Rows]) -> Rows: ...
    def named(self, statement: Statement) -> NamedRows:
        """The rows of a statement by the names of their columns."""
        ...

    def flush(self) -> None:
        """Send what an ORM still holds back."""
        ...

    def is_lost(self) -> bool:
        """Whether the connection is gone, as far as the driver knows without asking."""
        ...


class AsyncDriver(Protocol):
    """For tasks."""

    @property
    def dialect(self) -> Dialect: ...
    @property
    def engine(self) -> Engine: ...
    async def check(self) -> None: ...
    async def perform(self, statement: Effect[Rows]) -> Rows: ...
    async def named(self, statement: Statement) -> NamedRows: ...
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


AnyDriver = Driver | AsyncDriver
Bind = Callable[[object, str], AnyDriver | None]
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
OTHER_DRIVERS = ("MySQLdb", "mysql", "mariadb")
TAKEN = (
    "a connection of psycopg, asyncpg, sqlite3, aiosqlite, PyMySQL, aiomysql, SQLAlchemy 2 or Django, or a session of "
    "SQLAlchemy's"
)


def driver_for(connection: object, schema: str = "", *, taker: str = "within()") -> AnyDriver:
    """The driver for a connection or session; `schema` is PostgreSQL's, where the search path does not find it."""
    for module, ours in KINDS.items():
        if module in sys.modules:
            bind: Bind = import_module(f"{__name__}.{ours}").bind
            if (found := bind(connection, schema)) is not None:
                return found
    module, name = type(connection).__module__, type(connection).__qualname__
    other = "; to MariaDB, use PyMySQL or aiomysql" if module.partition(".")[0] in OTHER_DRIVERS else ""
    raise TypeError(f"{taker} takes {TAKEN}, not {module}.{name}{other}")


def is_async_driver(driver: AnyDriver) -> TypeGuard[AsyncDriver]:
    return inspect.iscoroutinefunction(driver.perform)


def autocommit(way_out: str) -> StoreMisconfigured:
    return StoreMisconfigured(
        f"no transaction is open on this connection: each statement would commit by itself, and the record without "
        f"your writes. {way_out}"
    )
