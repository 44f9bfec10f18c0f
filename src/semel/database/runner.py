"""Runs the scripts on any connection or session that `semel.transaction.within` takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from semel.connections import Dialect, driver_for
from semel.connections.placeholders import for_sqlite
from semel.core.effects import Effect, Plan
from semel.database.tables import Insert, Query, RowChange, SqlalchemyStatement
from semel.runtime.drive import adrive, drive
from semel.stores.sql.errors import duplicates_told
from semel.stores.sql.statements import Statement

T = TypeVar("T")
Script = Callable[[Dialect], Plan[T]]
"""A plan for the dialect of the connection."""


def run(connection: object, script: Script[T], *, together: bool = False) -> T:
    """Run `script`. If its statements must stay `together`, the connection must be in a transaction."""
    driver: Any = driver_for(connection, taker="semel.database")
    if together or driver.dialect is Dialect.MARIADB:  # there nearly every script takes several statements
        driver.check()

    def perform(effect: Effect[Any]) -> Any:
        with _translate_errors(effect):
            return _perform(driver, effect)

    return drive(script(driver.dialect), perform)


async def arun(connection: object, script: Script[T], *, together: bool = False) -> T:
    driver: Any = driver_for(connection, taker="semel.database")
    if together or driver.dialect is Dialect.MARIADB:
        await driver.check()

    async def perform(effect: Effect[Any]) -> Any:
        with _translate_errors(effect):
            return await _perform(driver, effect)

    return await adrive(script(driver.dialect), perform)


def _translate_errors(effect: Effect[Any]) -> AbstractContextManager[None]:
    return duplicates_told() if isinstance(effect, Insert) else nullcontext()


def _perform(driver: Any, effect: Effect[Any]) -> Any:
    """The reply, or a coroutine that gives it."""
    match effect:
        case Insert(of):
            return _perform(driver, of)
        case SqlalchemyStatement() | RowChange(SqlalchemyStatement()) if not hasattr(driver, "execute"):
            raise TypeError(
                "a Table of SQLAlchemy's needs a connection or session of SQLAlchemy's, not one of its driver's: give "
                "the table's name instead"
            )
        case SqlalchemyStatement(statement):
            return driver.execute(statement)
        case Query(sql, params):
            statement = Statement(sql, params)
            return driver.named(for_sqlite(statement) if driver.dialect is Dialect.SQLITE else statement)
        case RowChange(Query(sql, params)):
            return driver.changed(Statement(sql, params))
        case RowChange(SqlalchemyStatement(statement)):
            return driver.changed(statement)
        case _:
            raise TypeError(f"no connection performs {effect!r}")
