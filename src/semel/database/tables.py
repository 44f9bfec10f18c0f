"""A table as one that statements are made for: by its name, or as a `Table` of SQLAlchemy's.

Plain statements are SQL with checked names and bound values. SQLAlchemy's know the types of their columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, Union

from semel.connections import Dialect, NamedRows
from semel.core.effects import Effect

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


class SqlalchemyStatement(Effect[NamedRows], frozen=True):
    """A statement built with SQLAlchemy."""

    statement: Any


Asked = Query | SqlalchemyStatement


class Insert(Effect[NamedRows], frozen=True):
    """Gives the new row; none, or a `Duplicate` on MariaDB, when a unique key is in the way."""

    of: Asked


class RowChange(Effect[int], frozen=True):
    """For MariaDB, which has no UPDATE … RETURNING: says how many rows there were."""

    of: Asked


class Lock(Enum):
    """How MariaDB reads. In REPEATABLE READ, its default, only a locking read sees later commits of others."""

    NONE = ""
    SHARED = " LOCK IN SHARE MODE"
    EXCLUSIVE = " FOR UPDATE"


class Table(Protocol):
    """What the scripts need. Conditions are equalities; a None among them asks for NULL."""

    name: str
    dialect: Dialect

    def insert(self, values: Values, unique: Sequence[str]) -> Insert:
        """Insert, unless there is one with the same `unique` columns."""
        ...

    def find(self, where: Values, lock: Lock = Lock.NONE) -> Asked:
        """`lock` is for MariaDB; the other databases see the row as it is now, or fail."""
        ...

    def update(self, where: Values, values: Values, counter: str) -> Asked:
        """Gives the rows as they are now, but on MariaDB nothing."""
        ...

    def delete(self, where: Values) -> Asked: ...
    def unique_keys(self) -> Asked:
        """MariaDB's list of them, one row for each of their columns."""
        ...

    def column(self, name: str) -> str:
        """The name of a column in the database."""
        ...


def table_of(table: AnyTable, dialect: Dialect) -> Table:
    return PlainTable(table, dialect) if isinstance(table, str) else SqlalchemyTable(table, dialect)


def list_names(names: str | Iterable[str], field: str) -> list[str]:
    listed = [names] if isinstance(names, str) else list(names)
    if not listed:
        raise ValueError(f"{field} must name at least one column")
    return listed


class PlainTable:
    def __init__(self, name: str, dialect: Dialect) -> None:
        _check(name)
        self.name, self.dialect = name, dialect
        self._returning = "" if dialect is Dialect.MARIADB else " RETURNING *"

    def insert(self, values: Values, unique: Sequence[str]) -> Insert:
        _check(*values, *unique)
        marks = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        unless = "" if self.dialect is Dialect.MARIADB else f"ON CONFLICT ({', '.join(unique)}) DO NOTHING"
        sql = f"INSERT INTO {self.name} ({', '.join(values)}) VALUES ({marks}) {unless} RETURNING *"  # noqa: S608
        return Insert(Query(sql, list(values.values())))

    def find(self, where: Values, lock: Lock = Lock.NONE) -> Query:
        tests, params = _equal(where)
        locking = lock.value if self.dialect is Dialect.MARIADB else ""
        return Query(f"SELECT * FROM {self.name} WHERE {tests}{locking}", params)  # noqa: S608

    def update(self, where: Values, values: Values, counter: str) -> Query:
        _check(*values, counter)
        tests, params = _equal(where, start=len(values) + 1)
        sets = ", ".join(
            [*(f"{column} = ${number}" for number, column in enumerate(values, 1)), f"{counter} = {counter} + 1"]
        )
        return Query(f"UPDATE {self.name} SET {sets} WHERE {tests}{self._returning}", [*values.values(), *params])  # noqa: S608

    def delete(self, where: Values) -> Query:
        tests, params = _equal(where)
        return Query(f"DELETE FROM {self.name} WHERE {tests}{self._returning}", params)  # noqa: S608

    def unique_keys(self) -> Query:
        return Query(f"SHOW INDEX FROM {self.name} WHERE Non_unique = 0")

    def column(self, name: str) -> str:
        return name


class SqlalchemyTable:
    def __init__(self, table: sqlalchemy.Table, dialect: Dialect) -> None:
        self._table = table
        self.name: str = table.fullname
        self.dialect = dialect

    def insert(self, values: Values, unique: Sequence[str]) -> Insert:
        from sqlalchemy.dialects import postgresql, sqlite

        made: Any
        match self.dialect:
            case Dialect.MARIADB:
                made = self._table.insert().values(**values)
            case Dialect.SQLITE:
                made = sqlite.insert(self._table).values(**values).on_conflict_do_nothing(index_elements=list(unique))
            case Dialect.POSTGRES:
                made = postgresql.insert(self._table).values(**values)
                made = made.on_conflict_do_nothing(index_elements=list(unique))
        return Insert(SqlalchemyStatement(made.returning(*self._table.columns)))

    def find(self, where: Values, lock: Lock = Lock.NONE) -> SqlalchemyStatement:
        made = self._table.select().where(*self._equal(where))
        if self.dialect is Dialect.MARIADB and lock is not Lock.NONE:
            made = made.with_for_update(read=lock is Lock.SHARED)
        return SqlalchemyStatement(made)

    def update(self, where: Values, values: Values, counter: str) -> SqlalchemyStatement:
        column = self._table.columns[counter]
        made = self._table.update().where(*self._equal(where)).values({**values, counter: column + 1})
        return self._returning(made)

    def delete(self, where: Values) -> SqlalchemyStatement:
        return self._returning(self._table.delete().where(*self._equal(where)))

    def unique_keys(self) -> SqlalchemyStatement:
        import sqlalchemy
        from sqlalchemy.dialects import mysql

        quoted = mysql.dialect().identifier_preparer.format_table(self._table)
        return SqlalchemyStatement(
            sqlalchemy.text(f"SHOW INDEX FROM {quoted.replace(':', chr(92) + ':')} WHERE Non_unique = 0")
        )

    def column(self, name: str) -> str:
        return str(self._table.columns[name].name)

    def _returning(self, made: Any) -> SqlalchemyStatement:
        return SqlalchemyStatement(made if self.dialect is Dialect.MARIADB else made.returning(*self._table.columns))

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
