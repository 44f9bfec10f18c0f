"""Natural keys and optimistic locking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from semel.core.effects import Plan, do
from semel.database.changes import check_unique, insert_or_find, update_row
from semel.database.tables import Lock, Row, Table, Values, list_names
from semel.errors import StoreUnavailable

ROUNDS_MAX = 20
"""How often a row that comes and goes in the same moment is asked for again."""


@dataclass(frozen=True, slots=True)
class Stale:
    """Another transaction was faster: `row` is the row as it is now, None when it is gone."""

    row: Row | None


def insert_or_get(table: Table, values: Values, on: str | Iterable[str]) -> Plan[tuple[Row, bool]]:
    """Insert, or find what is there under the unique columns `on`; says which.

    A lost race shows nothing to the statement that lost it: only a second one sees the winner's row. If that is gone
    again by then, everything starts over.
    """
    unique = list_names(on, "on=")
    for column in unique:
        if values.get(column) is None:
            raise ValueError(f"values[{column!r}] must be given and not None: NULL is never equal to another NULL")
    place = {column: values[column] for column in unique}
    for _ in range(ROUNDS_MAX):
        row, created = yield from insert_or_find(table, values, unique, place)
        if created:
            yield from check_unique(table, unique)
        if row is not None:
            return row, created
    raise StoreUnavailable(f"a row of {table.name} came and went {ROUNDS_MAX} times while it was being asked for")


def update_if(table: Table, where: Values, version: int, values: Values, counter: str) -> Plan[Row | Stale]:
    """Compare and set in one statement."""
    list_names(where, "where=")
    if changed := (yield from update_row(table, where, values, counter, version)):
        return changed[0]
    # A caller that is late writes the row next, so it locks the row for writing: a shared lock would be in its way.
    found = yield from do(table.find(where, Lock.EXCLUSIVE))
    return Stale(found[0] if found else None)


def update(
    table: Table, where: Values, change: Callable[[Row], Mapping[str, object]], counter: str, tries_max: int
) -> Plan[Row | Stale]:
    """Read, let `change` decide, compare and set. If another transaction was faster, start over with the new row."""
    list_names(where, "where=")
    rows = yield from do(table.find(where))
    found: Row | Stale = Stale(rows[0] if rows else None)
    for _ in range(tries_max):
        if not isinstance(found, Stale) or found.row is None:
            return found
        found = yield from update_if(table, where, found.row[counter], change(found.row), counter)
    return found
