"""The table of a journal, and which version of it a file has."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from semel.errors import StoreMisconfigured

APPLICATION_ID = 0x73656D4A
"""Says in the file that it is a journal of semel ("semJ"): another program's database is never written to."""
SCHEMA_VERSION = 1
CREATE = (
    """CREATE TABLE IF NOT EXISTS intents (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    max_age_ms INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    owner TEXT NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    finished_ms INTEGER NOT NULL,
    error TEXT NOT NULL,
    request BLOB NOT NULL,
    answer BLOB,
    PRIMARY KEY (namespace, name)
)""",
    "CREATE INDEX IF NOT EXISTS intents_answered ON intents (namespace, finished_ms) WHERE state = 'answered'",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


def check_owner(connection: sqlite3.Connection, path: str) -> None:
    """Refuse the file of another program, or of a newer version of this one."""
    connection.execute("BEGIN")  # all three of one moment: another process may be making the file
    version, application = _pragma(connection, "user_version"), _pragma(connection, "application_id")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    connection.execute("COMMIT")
    if application != APPLICATION_ID and (tables or version or application):
        raise StoreMisconfigured(f"{path} is the database of another program: give the journal a file of its own")
    if version > SCHEMA_VERSION:
        raise StoreMisconfigured(
            f"{path} was written by a newer version of semel (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}): upgrade semel here, too. Nothing was sent"
        )


def bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Make the table. Of several processes the first one does."""
    if _pragma(connection, "user_version") < SCHEMA_VERSION:
        connection.execute("BEGIN IMMEDIATE")
        for statement in CREATE:
            connection.execute(statement)
        connection.execute("COMMIT")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    with closing(connection.execute(f"PRAGMA {name}")) as cursor:
        value: int = cursor.fetchone()[0]
        return value
