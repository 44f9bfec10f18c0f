"""Numbered, forward-only migrations. What is printed for `--sql` is what is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semel.core.effects import do
from semel.errors import StoreMisconfigured
from semel.store import Migration
from semel.stores.sql.statements import Script, Statement

CREATE = """CREATE TABLE IF NOT EXISTS semel_schema (
    number INTEGER PRIMARY KEY,
    title VARCHAR(200) NOT NULL,
    readable_from INTEGER NOT NULL
)"""

NEWEST = "SELECT number, readable_from FROM semel_schema ORDER BY number DESC LIMIT 1"


def statements(migration: Migration) -> tuple[str, ...]:
    """Everything that applies one migration, its own entry in the book included."""
    entry = f"INSERT INTO semel_schema VALUES ({migration.number}, '{migration.title}', {migration.readable_from})"
    return *migration.statements, entry


def printable(migrations: Sequence[Migration], *before: str) -> list[Migration]:
    """The migrations with everything that a person would have to run by hand, after `before`."""
    return [replace(migration, statements=(*before, CREATE, *statements(migration))) for migration in migrations]


def apply(migrations: Sequence[Migration]) -> Script[list[int]]:
    """Apply what is missing. Run it in one transaction that keeps other migrators out."""
    yield from do(Statement(CREATE))
    applied = {number for (number,) in (yield from do(Statement("SELECT number FROM semel_schema")))}
    missing = [migration for migration in migrations if migration.number not in applied]
    for migration in missing:
        for sql in statements(migration):
            yield from do(Statement(sql))
    return [migration.number for migration in missing]


def check(migrations: Sequence[Migration], store: str) -> Script[None]:
    """Refuse a schema that this version cannot use, and say what to run.

    The next version's schema is fine as long as it says so.
    """
    rows = yield from do(Statement(NEWEST))
    number, readable_from = rows[0] if rows else (0, 0)
    refuse_unfit(number, readable_from, migrations[-1].number, store)


def refuse_unfit(number: int, readable_from: int, known: int, store: str) -> None:
    """Refuse a schema whose newest migration is `number`, unless a version that knows migration `known` can use it."""
    if number < known:
        raise StoreMisconfigured(
            f"{store}: the schema has version {number}, this semel needs {known}; {HOW_TO_MIGRATE}"
        )
    if readable_from > known:
        raise StoreMisconfigured(
            f"{store}: the schema has version {number}, which needs a semel that knows version {readable_from}; "
            f"this one knows {known}: upgrade semel"
        )


HOW_TO_MIGRATE = "run `semel migrate --store URL` once, with a user who may create tables"
