"""Your connection, or your ORM's session, as one that runs statements of ours: a driver for each kind.

No driver's package is imported here: who has such a connection has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from semel.core.effects import Effect
from semel.errors import StoreMisconfigured
from semel.stores.sql.statements import Rows, Statement
from semel.transaction.scripts import Engine

NamedRows = list[dict[str, Any]]


class Driver(Protocol):
    """For threads."""

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


class AsyncDriver(Protocol):
    """For tasks."""

    @property
    def engine(self) -> Engine: ...
    async def check(self) -> None: ...
    async def perform(self, statement: Effect[Rows]) -> Rows: ...
    async def named(self, statement: Statement) -> NamedRows: ...
    async def flush(self) -> None: ...


Bind = Callable[[object, str], "Driver | AsyncDriver | None"]
KINDS = {  # what must have been imported if there is such a connection: the module of ours that knows it
    "django.db": "django",
    "sqlalchemy": "sqlalchemy",
    "psycopg": "psycopg",
    "asyncpg": "asyncpg",
    "aiosqlite": "aiosqlite",
    "sqlite3": "sqlite3",
}
WITHOUT_STORE = ("pymysql", "aiomysql", "MySQLdb", "mysql", "mariadb")


def driver_for(connection: object, schema: str = "") -> Driver | AsyncDriver:
    """The driver for a connection or session; `schema` is PostgreSQL's, where the search path does not find it."""
    for module, ours in KINDS.items():
        if module in sys.modules:
            bind: Bind = import_module(f"{__name__}.{ours}").bind
            if (found := bind(connection, schema)) is not None:
                return found
    package = type(connection).__module__.partition(".")[0]
    if package in WITHOUT_STORE:
        raise no_store("MariaDB and MySQL")
    raise TypeError(
        f"within() takes a connection of psycopg, asyncpg, sqlite3, aiosqlite, SQLAlchemy 2 or Django, or a session of "
        f"SQLAlchemy's, not {type(connection).__module__}.{type(connection).__qualname__}"
    )


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
