"""Django: the connection of an alias, inside of `transaction.atomic`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from semel.connections import Dialect, Driver, NamedRows, autocommit, mariadb
from semel.connections.engines import engine_of
from semel.connections.placeholders import named as spelt
from semel.connections.psycopg import refuse_pipeline
from semel.core.effects import Effect
from semel.errors import StoreMisconfigured
from semel.stores.sql.errors import engine_refusals_told, translated
from semel.stores.sql.statements import Rows, Statement

DIALECTS = {"postgresql": Dialect.POSTGRES, "sqlite": Dialect.SQLITE, "mysql": Dialect.MARIADB}


def bind(connection: object, schema: str) -> Driver | None:
    from django.db import connections
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.utils.connection import ConnectionProxy

    if isinstance(connection, ConnectionProxy):  # `django.db.connection`
        connection = connections[connection.alias]
    return DjangoDriver(connection, schema) if isinstance(connection, BaseDatabaseWrapper) else None


@contextmanager
def atomic(using: str = "default") -> Iterator[Any]:
    """`transaction.atomic`, that gives its connection: what `semel.transaction.run` and a `TransactionStore` begin."""
    from django.db import connections, transaction

    begun: Any = transaction.atomic(using=using)
    with begun:
        yield connections[using]


class DjangoDriver:
    def __init__(self, connection: Any, schema: str) -> None:
        self._connection = connection
        if connection.vendor not in DIALECTS:
            raise StoreMisconfigured(
                f"semel keeps no records in {connection.display_name}, so a transaction there cannot hold one: "
                "exactly-once works on PostgreSQL, SQLite and MariaDB"
            )
        self.dialect = DIALECTS[connection.vendor]
        self.engine = engine_of(self.dialect, schema)

    def check(self) -> None:
        if not self._connection.in_atomic_block:
            raise autocommit(f"Write `with transaction.atomic(using={self._connection.alias!r}):` around the block.")
        if self.dialect is Dialect.MARIADB:
            mariadb.check_server(self._connection.mysql_server_info)
        refuse_pipeline(self._connection.connection, "Django")

    def perform(self, statement: Effect[Rows]) -> Rows:
        assert isinstance(statement, Statement)
        with engine_refusals_told():
            return self._fetch(statement)[1]

    def named(self, statement: Statement) -> NamedRows:
        names, rows = self._fetch(statement)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _fetch(self, statement: Statement) -> tuple[list[str], Rows]:
        with translated(), self._connection.cursor() as cursor:
            if statement.params:
                cursor.execute(*spelt(statement))
            else:
                cursor.execute(statement.sql)
            if cursor.description is None:
                return [], []
            return [column[0] for column in cursor.description], cursor.fetchall()

    def flush(self) -> None:
        """Django's ORM holds nothing back."""

    def is_lost(self) -> bool:
        below = self._connection.connection
        return below is None or bool(getattr(below, "closed", False)) or not getattr(below, "open", True)
