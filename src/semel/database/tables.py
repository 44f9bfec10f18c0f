"""A table as one that statements are made for: by its name, or as a `Table` of SQLAlchemy's.

Plain statements are SQL with checked names and bound values. SQLAlchemy's know the types of their columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Union

from semel.core.effects import Effect
from semel.transaction.drivers import NamedRows

if TYPE_CHECKING:
    import sqlalchemy

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)?")
Row = dict[str, Any]
Values = Mapping[str, object]
AnyTable = Union[str, "sqlalchemy.Table"]


class Query(Effect[NamedRows], frozen=True):
    """SQL with `$n` in the places of `params`."""

    sql: str
    params: Sequence[object] = ()


class Made(Effect[NamedRows], frozen=True):
    """A statement that SQLAlchemy makes, for the dialect of the connection."""

    make: Callable[[str], Any]


class Table(Protocol):
    """What the scripts need. Conditions are equalities; a None among them asks for NULL."""

    name: str

    def insert(self, values: Values, unique: Sequence[str]) -> Effect[NamedRows]:
        """Insert, unless there is one with the same `unique` columns; gives the new row, or none."""
        ...

    def find(self, where: Values) -> Effect[NamedRows]: ...
    def update(self, where: Values, values: Values, counter: str) -> Effect[NamedRows]: ...
    def delete(self, where: Values) -> Effect[NamedRows]: ...


def table_of(table: AnyTable) -> Table:
    return PlainTable(table) if isinstance(table, str) else SqlalchemyTable(table)


def several(names: str | Iterable[str], field: str) -> list[str]:
    listed = [names] if isinstance(names, str) else list(names)
    if not listed:
        raise ValueError(f"{field} must name at least one column")
    return listed


class PlainTable:
    def __init__(self, name: str) -> None:
        _check(name)
        self.name = name

    def insert(self, values: Values, unique: Sequence[str]) -> Query:
        _check(*values, *unique)
        marks = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        sql = f"""INSERT INTO {self.name} ({", ".join(values)}) VALUES ({marks})
            ON CONFLICT ({", ".join(unique)}) DO NOTHING RETURNING *"""  # noqa: S608
        return Query(sql, list(values.values()))

    def find(self, where: Values) -> Query:
        tests, params = _equal(where)
        return Query(f"SELECT * FROM {self.name} WHERE {tests}", params)  # noqa: S608

    def update(self, where: Values, values: Values, counter: str) -> Query:
        _check(*values, counter)
        tests, params = _equal(where, start=len(values) + 1)
        sets = [f"{column} = ${number}" for number, column in enumerate(values, 1)]
        sql = f"UPDATE {self.name} SET {', '.join([*sets, f'{counter} = {counter} + 1'])} WHERE {tests} RETURNING *"  # noqa: S608
        return Query(sql, [*values.values(), *params])

    def delete(self, where: Values) -> Query:
        tests, params = _equal(where)
        return Query(f"DELETE FROM {self.name} WHERE {tests} RETURNING 1 AS one", params)  # noqa: S608


class SqlalchemyTable:
    def __init__(self, table: sqlalchemy.Table) -> None:
        self._table = table
        self.name: str = table.fullname

    def insert(self, values: Values, unique: Sequence[str]) -> Made:
        def make(dialect: str) -> Any:
            from sqlalchemy.dialects import postgresql, sqlite

            made = (sqlite if dialect == "sqlite" else postgresql).insert(self._table).values(**values)
            return made.on_conflict_do_nothing(index_elements=list(unique)).returning(*self._table.columns)

        return Made(make)

    def find(self, where: Values) -> Made:
        return Made(lambda _: self._table.select().where(*self._equal(where)))

    def update(self, where: Values, values: Values, counter: str) -> Made:
        column = self._table.columns[counter]
        made = self._table.update().where(*self._equal(where)).values({**values, counter: column + 1})
        return Made(lambda _: made.returning(*self._table.columns))

    def delete(self, where: Values) -> Made:
        return Made(lambda _: self._table.delete().where(*self._equal(where)).returning(*self._table.columns))

    def _equal(self, where: Values) -> list[Any]:
        return [self._table.columns[name] == value for name, value in where.items()]


def _equal(where: Values, *, start: int = 1) -> tuple[str, list[object]]:
    """The condition, and what fills it."""
    _check(*where)
    params = [value for value in where.values() if value is not None]
    marks = iter(range(start, start + len(params)))
    tests = [f"{name} IS NULL" if value is None else f"{name} = ${next(marks)}" for name, value in where.items()]
    return " AND ".join(tests), params


def _check(*names: str) -> None:
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a plain SQL name; give a Table of SQLAlchemy's for quoted ones")
