"""Outboxes for tests: any store's, with a way to add messages and to damage them on a connection of the test's own."""

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pymysql
import pytest

from semel import open_async_store, open_store
from semel.core.effects import Effect
from semel.core.messages import Message
from semel.core.outbox import SettleMessages, TakeMessages, Taken
from semel.store import AsyncOutboxed, Clock, Migratable, Outboxed
from semel.testing.loop_thread import LoopThread
from servers.mariadb import arguments

COLUMNS = (
    "created_ms",
    "available_ms",
    "id",
    "aggregatetype",
    "aggregateid",
    "content_type",
    "headers",
    "payload",
)
LEASE_MS = 60_000
Execute = Callable[..., list[Any]]
Ask = Callable[[Effect[Any]], Any]


def message(name: str, key: str | None = None, **changed: Any) -> Message:
    return Message(**{"id": name, "topic": "orders", "payload": name.encode(), "key": key, **changed})


def row_of(message: Message, now_ms: int) -> Sequence[object]:
    headers = msgspec.json.encode(dict(message.headers), order="deterministic").decode()
    return (
        now_ms,
        now_ms,
        message.id,
        message.topic,
        message.key,
        message.content_type,
        headers,
        message.payload,
    )


def make_tables(url: str) -> None:
    with closing(open_store(url)) as store:
        assert isinstance(store, Migratable)
        store.migrate()


class Place:
    """A database with an outbox in it. `$n` is the n-th parameter of a statement, for both kinds."""

    url: str
    by_hand: str
    """What lets a statement name the number of a message."""

    @contextmanager
    def connected(self) -> Iterator[Execute]:
        """A connection of the test's own in a transaction, which ends with the block."""
        raise NotImplementedError

    def sql(self, statement: str, *params: object) -> list[Any]:
        with self.connected() as execute:
            return execute(statement, *params)

    def add(self, *messages: Message, now_ms: int = 0) -> list[int]:
        """Add messages in one transaction, and say their numbers."""
        with self.connected() as execute:
            return [self.insert(execute, each, now_ms) for each in messages]

    def insert(self, execute: Execute, each: Message, now_ms: int = 0) -> int:
        places = ", ".join(f"${number}" for number in range(1, len(COLUMNS) + 1))
        statement = f"INSERT INTO semel_outbox ({', '.join(COLUMNS)}) VALUES ({places}) RETURNING sequence"
        [(sequence,)] = execute(statement, *row_of(each, now_ms))
        return int(sequence)

    def insert_late(self, sequence: int, each: Message, now_ms: int) -> None:
        """Add a message whose number was given out long ago, as a transaction does that commits late."""
        places = ", ".join(f"${number}" for number in range(1, len(COLUMNS) + 2))
        columns = f"sequence, {', '.join(COLUMNS)}"
        self.sql(
            f"INSERT INTO semel_outbox ({columns}) {self.by_hand} VALUES ({places})", sequence, *row_of(each, now_ms)
        )


class SqlitePlace(Place):
    by_hand = ""

    def __init__(self, path: Path) -> None:
        self.path, self.url = path, f"sqlite:///{path}"
        make_tables(self.url)

    @contextmanager
    def connected(self) -> Iterator[Execute]:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield lambda statement, *params: connection.execute(statement.replace("$", "?"), params).fetchall()
            connection.execute("COMMIT")


class PostgresPlace(Place):
    by_hand = "OVERRIDING SYSTEM VALUE"

    def __init__(self, url: str) -> None:
        self.url = url
        make_tables(url)
        self.sql("DELETE FROM semel_outbox")  # the database is shared

    @contextmanager
    def connected(self) -> Iterator[Execute]:
        with psycopg.connect(self.url, cursor_factory=psycopg.RawCursor, prepare_threshold=None) as connection:

            def execute(statement: str, *params: object) -> list[Any]:
                cursor = connection.execute(statement.encode(), params or None)
                return cursor.fetchall() if cursor.description else []

            yield execute


class MariadbPlace(Place):
    by_hand = ""

    def __init__(self, url: str) -> None:
        self.url = url
        make_tables(url)
        self.sql("DELETE FROM semel_outbox")  # the database is shared

    @contextmanager
    def connected(self) -> Iterator[Execute]:
        """PyMySQL names its parameters by their places, so each `$n` may stand once, in order."""
        with closing(pymysql.connect(**arguments(self.url))) as connection:

            def execute(statement: str, *params: object) -> list[Any]:
                with connection.cursor() as cursor:
                    cursor.execute(re.sub(r"\$[0-9]+", "%s", statement), params or None)
                    return list(cursor.fetchall())

            yield execute
            connection.commit()


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match kind:
        case "sqlite":
            return SqlitePlace(tmp_path / "semel.db")
        case "mariadb":
            return MariadbPlace(request.getfixturevalue("mariadb_url"))
        case _:
            return PostgresPlace(request.getfixturevalue("postgres_url"))


def open_asking(url: str, clock: Clock | None = None) -> tuple[Ask, Callable[[], None]]:
    store = open_store(url, clock=clock)
    assert isinstance(store, Outboxed)
    return store.outbox, store.close


def open_async_asking(url: str, clock: Clock | None = None) -> tuple[Ask, Callable[[], None]]:
    """The async face, for callers that block."""
    loop = LoopThread()

    async def opened() -> Any:
        return open_async_store(url, clock=clock)

    store = loop.run(opened())
    assert isinstance(store, AsyncOutboxed)

    def close() -> None:
        loop.run(store.close())  # type: ignore[attr-defined]
        loop.close()

    return (lambda call: loop.run(store.outbox(call))), close


def take(ask: Ask, owner: str = "first", count: int = 100, lease_ms: int = LEASE_MS, **rest: bool) -> Sequence[Taken]:
    found: Sequence[Taken] = ask(TakeMessages(owner, count, lease_ms, **rest))
    return found


def names(taken: Sequence[Taken]) -> list[str]:
    return [each.message.id for each in taken]


def publish_all(ask: Ask, owner: str, taken: Sequence[Taken]) -> int:
    done: int = ask(SettleMessages(owner, published=tuple(each.sequence for each in taken)))
    return done
