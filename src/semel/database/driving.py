"""Runs the scripts on any connection or session that `semel.transaction.within` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from semel.core.effects import Effect, Plan
from semel.database.tables import Made, Query
from semel.drive import adrive, drive
from semel.stores.sql.statements import Statement
from semel.transaction.drivers import driver_for
from semel.transaction.drivers.placeholders import for_sqlite
from semel.transaction.sqlite import SqliteEngine

T = TypeVar("T")


def run(connection: object, script: Plan[T]) -> T:
    return drive(script, _performer(connection))


async def arun(connection: object, script: Plan[T]) -> T:
    return await adrive(script, _performer(connection))


def _performer(connection: object) -> Callable[[Effect[Any]], Any]:
    driver: Any = driver_for(connection)
    is_sqlite = isinstance(driver.engine, SqliteEngine)

    def perform(effect: Effect[Any]) -> Any:
        match effect:
            case Query(sql, params):
                statement = Statement(sql, params)
                return driver.named(for_sqlite(statement) if is_sqlite else statement)
            case Made(make):
                if not hasattr(driver, "execute"):
                    raise TypeError(
                        f"a Table of SQLAlchemy's needs a connection or session of SQLAlchemy's, not "
                        f"{type(connection).__qualname__}: give the table's name instead"
                    )
                return driver.execute(make("sqlite" if is_sqlite else "postgresql"))
            case _:
                raise TypeError(f"no connection performs {effect!r}")

    return perform
