"""The functions, for threads and (with an `a` in front) for tasks.

The twins stay side by side: the logic is in the plans of `rows` and `events`, and what is left are the arguments.

`table` is the name of a table, plain or `schema.name`, or a `Table` of SQLAlchemy's. Names are checked, values bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from semel.database import events as sequences
from semel.database import rows
from semel.database.rows import Stale
from semel.database.runner import arun, run
from semel.database.tables import AnyTable, Row, table_of

TRIES_MAX = 5


def insert_or_get(
    connection: object, table: AnyTable, values: Mapping[str, object], *, on: str | Iterable[str]
) -> tuple[Row, bool]:
    """The row under the unique columns `on`, and whether this call created it."""
    return run(connection, lambda dialect: rows.insert_or_get(table_of(table, dialect), values, on))


async def ainsert_or_get(
    connection: object, table: AnyTable, values: Mapping[str, object], *, on: str | Iterable[str]
) -> tuple[Row, bool]:
    """`insert_or_get` for tasks."""
    return await arun(connection, lambda dialect: rows.insert_or_get(table_of(table, dialect), values, on))


def update_if(
    connection: object,
    table: AnyTable,
    *,
    where: Mapping[str, object],
    version: int,
    values: Mapping[str, object],
    version_column: str = "version",
) -> Row | Stale:
    """Change the row if it still has `version`, which then grows by one; else `Stale`, with what is there now."""
    return run(
        connection, lambda dialect: rows.update_if(table_of(table, dialect), where, version, values, version_column)
    )


async def aupdate_if(
    connection: object,
    table: AnyTable,
    *,
    where: Mapping[str, object],
    version: int,
    values: Mapping[str, object],
    version_column: str = "version",
) -> Row | Stale:
    """`update_if` for tasks."""
    return await arun(
        connection, lambda dialect: rows.update_if(table_of(table, dialect), where, version, values, version_column)
    )


def update(
    connection: object,
    table: AnyTable,
    *,
    where: Mapping[str, object],
    change: Callable[[Row], Mapping[str, object]],
    version_column: str = "version",
    tries_max: int = TRIES_MAX,
) -> Row | Stale:
    """`update_if` with what `change(row)` says, again while others are faster, at most `tries_max` times.

    PostgreSQL needs READ COMMITTED, its default, for that: in a stricter transaction nothing newer is ever seen.
    """
    return run(
        connection, lambda dialect: rows.update(table_of(table, dialect), where, change, version_column, tries_max)
    )


async def aupdate(
    connection: object,
    table: AnyTable,
    *,
    where: Mapping[str, object],
    change: Callable[[Row], Mapping[str, object]],
    version_column: str = "version",
    tries_max: int = TRIES_MAX,
) -> Row | Stale:
    """`update` for tasks."""
    return await arun(
        connection, lambda dialect: rows.update(table_of(table, dialect), where, change, version_column, tries_max)
    )


def append(
    connection: object,
    table: AnyTable,
    stream: object,
    events: Sequence[Mapping[str, object]],
    *,
    expected: int,
    stream_column: str = "aggregate_id",
    sequence_column: str = "sequence",
) -> int:
    """Append events to a stream whose last event is `expected` (0: it is new); says the number of the last one now.

    A repeat with the same events is fine, other events at that place are a `StreamConflict`. The table must have a
    unique key on both columns.
    """
    return run(
        connection,
        lambda dialect: sequences.append(
            table_of(table, dialect), stream, events, expected, (stream_column, sequence_column)
        ),
        together=True,
    )


async def aappend(
    connection: object,
    table: AnyTable,
    stream: object,
    events: Sequence[Mapping[str, object]],
    *,
    expected: int,
    stream_column: str = "aggregate_id",
    sequence_column: str = "sequence",
) -> int:
    """`append` for tasks."""
    return await arun(
        connection,
        lambda dialect: sequences.append(
            table_of(table, dialect), stream, events, expected, (stream_column, sequence_column)
        ),
        together=True,
    )
