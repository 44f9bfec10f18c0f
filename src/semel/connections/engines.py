"""The engine that a connection's database has."""

from __future__ import annotations

from typing import assert_never

from semel.connections import Dialect
from semel.stores.mariadb.transaction import MariadbEngine
from semel.stores.postgres.transaction import PostgresEngine
from semel.stores.sql.engine import Engine
from semel.stores.sqlite.transaction import SqliteEngine


def engine_of(dialect: Dialect, schema: str) -> Engine:
    match dialect:
        case Dialect.POSTGRES:
            return PostgresEngine(schema)
        case Dialect.SQLITE:
            return SqliteEngine()
        case Dialect.MARIADB:
            return MariadbEngine()
        case _:
            assert_never(dialect)
