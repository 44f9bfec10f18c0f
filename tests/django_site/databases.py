"""Databases that a test gives Django, under aliases of their own: threads that outlive a test keep connections."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.db import connections
from pymysql import install_as_MySQLdb

from servers.mariadb import arguments

Database = dict[str, object]


def sqlite_at(path: Path) -> Database:
    """The file is there already: SQLite waits for nobody when several turn a new one to WAL at once."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    options = {"timeout": 20}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": options}


def postgres_at(postgres_url: str) -> Database:
    url = urlsplit(postgres_url)
    place = {"NAME": url.path[1:], "USER": url.username, "HOST": url.hostname, "PORT": url.port}
    return {"ENGINE": "django.db.backends.postgresql", **place}


def mariadb_at(url: str) -> Database:
    place = {name.upper(): value for name, value in arguments(url).items() if name != "database"}
    return {"ENGINE": "django.db.backends.mysql", "NAME": arguments(url)["database"], **place}


def new_alias() -> str:
    return f"records-{uuid4().hex}"


def add(alias: str, database: Database) -> None:
    if database["ENGINE"] == "django.db.backends.mysql":
        install_as_MySQLdb()  # mysqlclient would have to be compiled
    if alias not in connections.settings:
        connections.settings[alias] = connections.configure_settings({"default": database})["default"]


def close_everywhere(alias: str) -> None:
    """Close the connection of this thread, and that of the one thread in which asgiref calls what may block.

    It has a connection for every alias, and outlives all tests. Within a request there is another one, which ends.
    """

    def close() -> None:
        connections[alias].close()  # each thread finds its own

    async def close_there() -> None:
        await sync_to_async(close)()

    close()
    asyncio.run(close_there())


def remove(alias: str) -> None:
    if alias in connections.settings:
        close_everywhere(alias)
        del connections.settings[alias]


@contextmanager
def added(database: Database) -> Iterator[str]:
    alias = new_alias()
    add(alias, database)
    try:
        yield alias
    finally:
        remove(alias)
