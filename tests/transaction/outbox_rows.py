"""What is in the outbox of a database, seen from outside."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import NamedTuple

import psycopg

from transaction.modes import is_mariadb, mariadb_rows, path_of

COLUMNS = "id, aggregatetype, aggregateid, content_type, headers, payload, created_ms, available_ms, state, attempt"


class Letter(NamedTuple):
    """One row."""

    id: str
    topic: str
    key: str | None
    content_type: str
    headers: str
    payload: bytes
    created_ms: int
    available_ms: int
    state: int
    attempt: int


def letters(url: str, topic: str) -> list[Letter]:
    """The messages of a topic, in their order."""
    query = f"SELECT {COLUMNS} FROM semel_outbox WHERE aggregatetype = '{topic}' ORDER BY sequence"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path_of(url))) as lite:
            return [Letter(*row) for row in lite.execute(query)]
    if is_mariadb(url):
        return [Letter(*row) for row in mariadb_rows(url, query)]
    with psycopg.connect(url) as connection:
        return [Letter(*row) for row in connection.execute(query.encode())]


def ids(url: str, topic: str) -> list[str]:
    return [letter.id for letter in letters(url, topic)]
