"""The tables of a journal, which version of them a file has, and whether its contents are sealed.

A sealed journal has a mark: a word that is sealed as the intents are. So a journal without its keys, or with other
keys, is refused as it is opened, and not only when one of its intents is read.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from semel.codecs.origins import Origin
from semel.codecs.seal import Seal
from semel.core.records import NOBODY, Key, Result
from semel.errors import RecordUnreadable, StoreMisconfigured

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
    request BLOB NOT NULL,
    outcome BLOB,
    PRIMARY KEY (namespace, name)
)""",
    "CREATE INDEX IF NOT EXISTS intents_answered ON intents (namespace, finished_ms) WHERE state = 'answered'",
    """CREATE TABLE IF NOT EXISTS mark (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    format TEXT NOT NULL,
    payload BLOB NOT NULL
)""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
MARK = Origin(Key("", "journal: mark", "-"), "", 0, NOBODY)
MARKED = Result("mark.1", b"sealed")


def check_owner(connection: sqlite3.Connection, path: str) -> None:
    """Refuse the file of another program, and of a newer version of this one."""
    connection.execute("BEGIN")  # all three of one moment: another process may be making the file
    version, application = _pragma(connection, "user_version"), _pragma(connection, "application_id")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    connection.execute("COMMIT")
    if application != APPLICATION_ID and (tables or version or application):
        raise StoreMisconfigured(f"{path} is the database of another program: give the journal a file of its own")
    check_version(connection, path)


def check_version(connection: sqlite3.Connection, path: str) -> None:
    """Each transaction asks: another process with a newer version may have changed the file meanwhile."""
    if (version := _pragma(connection, "user_version")) > SCHEMA_VERSION:
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


def check_mark(connection: sqlite3.Connection, path: str, seal: Seal | None) -> None:
    """Refuse a sealed journal without its keys, and a plain one with keys. A new journal is marked."""
    connection.execute("BEGIN IMMEDIATE")
    row = connection.execute("SELECT format, payload FROM mark").fetchone()
    mark = None if row is None else Result(*row)
    if seal is not None:
        if mark is None and connection.execute("SELECT 1 FROM intents LIMIT 1").fetchone():
            mark = MARKED  # as plain as the intents are
        if mark is not None:
            _open_mark(seal, mark, path)
        if mark is None or not seal.is_current(mark):
            sealed = seal.seal(MARK, MARKED)
            connection.execute("INSERT OR REPLACE INTO mark VALUES (1, ?, ?)", (sealed.format, sealed.payload))
    elif mark is not None:
        raise StoreMisconfigured(
            f"{path} is sealed: open it with its keys, Journal(url, seal=Seal(keys)) or --seal-keys. Nothing was sent"
        )
    connection.execute("COMMIT")


def _open_mark(seal: Seal, mark: Result, path: str) -> None:
    try:
        seal.open(MARK, mark)
    except RecordUnreadable as error:
        raise StoreMisconfigured(
            f"the journal {path} does not open with the keys of seal=, so nothing is sent: {error}"
        ) from error


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    with closing(connection.execute(f"PRAGMA {name}")) as cursor:
        value: int = cursor.fetchone()[0]
        return value
