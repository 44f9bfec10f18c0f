"""What the databases do in different ways: insert or find, update, delete; each as one step for the scripts.

PostgreSQL and SQLite have ON CONFLICT and RETURNING. On MariaDB a plain INSERT is refused (1062), which undoes that
statement only and leaves the transaction usable. INSERT IGNORE would hide every other mistake, too (truncation, a
missing parent). ON DUPLICATE KEY UPDATE cannot tell the key that was meant from another one, nor, on connections with
FOUND_ROWS, as SQLAlchemy's are, a new row from an old one.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.connections import Dialect, NamedRows
from semel.core.effects import Plan, do
from semel.database.tables import Lock, Row, RowChange, Table, Values
from semel.errors import StoreMisconfigured
from semel.stores.sql.errors import Duplicate


def insert_or_find(table: Table, values: Values, unique: Sequence[str], where: Values) -> Plan[tuple[Row | None, bool]]:
    """Insert, unless there is a row with the same `unique` columns; says whether, and else what is found `where`.

    The refused insert holds a shared lock on the row in its way, and so may others that were refused. The read that
    follows shares it, because two that asked for more would wait for each other.
    """
    refused: Duplicate | None = None
    try:
        if made := (yield from do(table.insert(values, unique))):
            return made[0], True
    except Duplicate as error:
        refused = error
    found = yield from do(table.find(where, Lock.SHARED))
    if refused is not None and not found:
        place = {column: values[column] for column in unique}
        if where == place or not (yield from do(table.find(place, Lock.SHARED))):
            raise refused.error  # it was another unique key than this one
    if len(found) > 1:  # on MariaDB the number 5 is equal to the texts '5' and '5th'
        raise TypeError(
            f"several rows of {table.name} have these {', '.join(unique)}: give values of the columns' types"
        )
    return (found[0] if found else None), False


def update_row(table: Table, where: Values, values: Values, counter: str, version: int) -> Plan[NamedRows]:
    """The row, with new `values`, if it still has that `version`."""
    changing = table.update({**where, counter: version}, values, counter)
    if table.dialect is not Dialect.MARIADB:
        return (yield from do(changing))
    if not (yield from do(RowChange(changing))):
        return []
    # Ours since the update; its new values are what finds it, where they are part of the condition.
    now = {column: values.get(column, value) for column, value in where.items()}
    return (yield from do(table.find({**now, counter: version + 1})))


def delete_row(table: Table, where: Values) -> Plan[None]:
    deleting = table.delete(where)
    yield from do(RowChange(deleting) if table.dialect is Dialect.MARIADB else deleting)


def check_unique(table: Table, columns: Sequence[str]) -> Plan[None]:
    """ON CONFLICT fails without a unique key on just these columns. MariaDB would insert the second row, too."""
    if table.dialect is not Dialect.MARIADB:
        return
    keys: dict[str, set[str]] = {}
    for row in (yield from do(table.unique_keys())):
        keys.setdefault(row["Key_name"], set()).add(row["Column_name"].lower())
    if {table.column(column).lower() for column in columns} not in keys.values():
        raise StoreMisconfigured(
            f"{table.name} has no unique key on ({', '.join(columns)}), so nothing keeps a second row out: roll back, "
            "and create one, or name the columns of one"
        )
