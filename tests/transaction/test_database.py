"""insert_or_get, update_if, append and watermarks, on every driver, with races (see test_database_mariadb.py)."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from semel import database
from semel.database import Stale, StreamConflict
from semel.errors import StoreMisconfigured
from semel.transaction import RetryTransaction
from semel.watermark import Gap, watermark
from servers.mariadb import arguments
from transaction.modes import MODES, ON_MARIADB, Mode, path_of, sqlalchemy_url

each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
SOME = ("psycopg", "asyncpg", "sqlalchemy-psycopg-connection", "sqlite3", "aiosqlite", "sqlalchemy-aiosqlite-session")
some_modes = pytest.mark.parametrize(
    "mode", [mode for mode in MODES if mode.name in SOME or mode in ON_MARIADB], ids=lambda mode: mode.name
)
TABLES = (
    "CREATE TABLE payments (id {}, intent varchar(50) UNIQUE, amount integer, version integer NOT NULL DEFAULT 1)",
    "CREATE TABLE events (aggregate_id varchar(80), sequence bigint, kind varchar(50), note varchar(50), "
    "PRIMARY KEY (aggregate_id, sequence))",
)


@pytest.fixture(scope="module", autouse=True)
def tables(urls: Mapping[str, str]) -> None:
    with psycopg.connect(urls["postgres"]) as connection:
        for sql in TABLES:
            connection.execute(sql.format("bigserial PRIMARY KEY").encode())
        watermark("any", connection).create()
    with sqlite3.connect(path_of(urls["sqlite"])) as lite:
        for sql in TABLES:
            lite.execute(sql.format("integer PRIMARY KEY"))
        watermark("any", lite).create()
    lite.close()


@pytest.fixture(scope="module")
def mariadb(mariadb_url: str) -> str:
    connection = pymysql.connect(**arguments(mariadb_url))
    watermark("any", connection).create()
    with connection, connection.cursor() as cursor:
        for sql in TABLES:
            cursor.execute(sql.format("bigint AUTO_INCREMENT PRIMARY KEY"))
    return mariadb_url


@pytest.fixture
def url(mode: Mode, urls: Mapping[str, str], request: pytest.FixtureRequest) -> str:
    """Who has no MariaDB misses no other database's tests."""
    found: str = request.getfixturevalue("mariadb") if mode.database == "mariadb" else urls[mode.database]
    return found


def within_one(mode: Mode, url: str, act: Callable[[Any], Any]) -> Any:
    """`act(connection)` in one transaction, awaited if need be."""

    async def tasks() -> Any:
        async with mode.begin(url, "") as connection:
            done = act(connection)
            return await done if inspect.isawaitable(done) else done

    if mode.is_async:
        return asyncio.run(tasks())
    with mode.begin(url, "") as connection:
        return act(connection)


def function(mode: Mode, name: str) -> Any:
    return getattr(database, f"a{name}" if mode.is_async else name)


@each_mode
def test_insert_or_get(mode: Mode, url: str) -> None:
    def put(amount: int) -> Any:
        values = {"intent": mode.name, "amount": amount}
        return within_one(
            mode, url, lambda made: function(mode, "insert_or_get")(made, "payments", values, on="intent")
        )

    row, created = put(10)
    assert (row["amount"], row["version"], created) == (10, 1, True)
    assert put(99) == (row, False)


@some_modes
def test_update_if_and_update(mode: Mode, url: str) -> None:
    where = {"intent": f"{mode.name}.locked"}
    values = {**where, "amount": 1}
    within_one(mode, url, lambda made: function(mode, "insert_or_get")(made, "payments", values, on=["intent"]))

    def change(version: int, amount: int) -> Any:
        options = {"where": where, "version": version, "values": {"amount": amount}}
        return within_one(mode, url, lambda made: function(mode, "update_if")(made, "payments", **options))

    assert change(1, 2)["version"] == 2
    stale = change(1, 3)
    assert isinstance(stale, Stale)
    assert stale.row is not None
    assert (stale.row["amount"], stale.row["version"]) == (2, 2)

    def again(connection: Any) -> Any:
        return function(mode, "update")(
            connection, "payments", where=where, change=lambda row: {"amount": row["amount"] + 10}
        )

    assert within_one(mode, url, again)["amount"] == 12
    where["intent"] = "nobody"
    assert change(1, 1) == Stale(None)


@some_modes
def test_events(mode: Mode, url: str) -> None:
    stream = f"order of {mode.name}"

    def append(expected: int, *events: Any, keep: list[StreamConflict] | None = None) -> Any:
        listed = [{"kind": kind, "note": note} for kind, note in events]

        async def tasks(connection: Any) -> Any:
            try:
                return await database.aappend(connection, "events", stream, listed, expected=expected)
            except StreamConflict as error:
                if keep is None:
                    raise
                keep.append(error)  # and the transaction is committed

        def sync(connection: Any) -> Any:
            try:
                return database.append(connection, "events", stream, listed, expected=expected)
            except StreamConflict as error:
                if keep is None:
                    raise
                keep.append(error)

        return within_one(mode, url, tasks if mode.is_async else sync)

    assert append(0, ("made", None), ("paid", "x")) == 2
    assert append(0, ("made", None), ("paid", "x")) == 2  # a repeat
    assert append(2, ("sent", None)) == 3
    for expected, events in (
        (0, [("made", "other")]),
        (0, [("made", None), ("paid", "y")]),
        (2, [("sent", None), ("lost", None)]),
        (9, [("sent", None)]),
    ):
        caught: list[StreamConflict] = []
        append(expected, *events, keep=caught)
        assert len(caught) == 1, events
    assert append(3, ("done", None)) == 4  # nothing of those was kept


@some_modes
def test_watermarks(mode: Mode, url: str) -> None:
    def advance(kind: Any, sequence: int) -> bool:
        def act(connection: Any) -> Any:
            mark = watermark(f"{mode.name}.{kind}", connection, mode=kind)
            return mark.aadvance("s", sequence) if mode.is_async else mark.advance("s", sequence)

        return bool(within_one(mode, url, act))

    def position(kind: str) -> Any:
        def act(connection: Any) -> Any:
            mark = watermark(f"{mode.name}.{kind}", connection)
            return mark.aposition("s") if mode.is_async else mark.position("s")

        return within_one(mode, url, act)

    assert [advance("strict", number) for number in (1, 1, 2)] == [True, False, True]
    with pytest.raises(Gap) as caught:
        advance("strict", 4)
    assert (caught.value.expected, position("strict")) == (3, 2)
    assert [advance("monotone", number) for number in (5, 3, 5, 9)] == [True, False, False, True]
    assert [advance("sparse", number) for number in (2, 4, 2, 1, 1, 2, 4, 3)] == [
        True, True, False, True, False, False, False, True,
    ]  # fmt: skip
    assert position("sparse") == 4
    with pytest.raises(Gap, match="limit"):
        advance("sparse", 1_000_000)


@pytest.mark.parametrize(
    ("kind", "driver"),
    [("postgres", "psycopg"), ("sqlite", "pysqlite"), ("mariadb", "pymysql")],
    ids=lambda value: value,
)
def test_tables_of_sqlalchemy_keep_their_types(
    kind: str, driver: str, urls: Mapping[str, str], request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue("mariadb") if kind == "mariadb" else urls[kind]
    engine = sa.create_engine(sqlalchemy_url(place, driver), poolclass=sa.NullPool)
    table = sa.Table(
        "typed", sa.MetaData(), sa.Column("name", sa.String(50), primary_key=True), sa.Column("data", sa.JSON),
        sa.Column("version", sa.Integer, default=1),
    )  # fmt: skip
    table.create(engine)
    with engine.begin() as connection:
        row, created = database.insert_or_get(connection, table, {"name": "a", "data": {"x": [1]}}, on="name")
        assert (row["data"], row["version"], created) == ({"x": [1]}, 1, True)
        assert database.insert_or_get(connection, table, {"name": "a", "data": None}, on="name") == (row, False)
        changed = database.update_if(connection, table, where={"name": "a"}, version=1, values={"data": [2]})
        assert not isinstance(changed, Stale)
        assert (changed["data"], changed["version"]) == ([2], 2)
        stale = database.update_if(connection, table, where={"name": "a"}, version=1, values={"data": [3]})
        assert stale == Stale(changed)


def test_tables_of_sqlalchemy_need_its_connections(urls: Mapping[str, str]) -> None:
    table = sa.Table("typed", sa.MetaData(), sa.Column("name", sa.String(50), primary_key=True))
    with psycopg.connect(urls["postgres"]) as plain, pytest.raises(TypeError, match="SQLAlchemy"):
        database.insert_or_get(plain, table, {"name": "a"}, on="name")


def test_names_are_checked_and_nulls_refused(urls: Mapping[str, str]) -> None:
    with psycopg.connect(urls["postgres"]) as connection:
        for table, values, on in (
            ("payments; DROP TABLE payments", {"intent": "a"}, "intent"),
            ("payments", {"intent) --": "a", "intent": "b"}, "intent"),
            ("payments", {"intent": None}, "intent"),
            ("payments", {"intent": "a"}, []),
        ):
            with pytest.raises(ValueError):
                database.insert_or_get(connection, table, values, on=on)


@pytest.fixture
def crowd() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.mark.parametrize("level", ["read committed", "serializable"])
def test_one_of_many_creates(level: str, urls: Mapping[str, str], crowd: ThreadPoolExecutor) -> None:
    barrier = threading.Barrier(8)

    def put(number: int) -> tuple[int, bool]:
        barrier.wait(30)
        while True:
            try:
                with MODES[0].begin(urls["postgres"], level) as connection:
                    values = {"intent": f"crowd.{level}", "amount": number}
                    row, created = database.insert_or_get(connection, "payments", values, on="intent")
                    return row["id"], created
            except RetryTransaction:
                continue

    replies = list(crowd.map(put, range(8)))
    assert len({number for number, _ in replies}) == 1
    assert sum(created for _, created in replies) == 1


def test_an_event_is_applied_once_by_many(urls: Mapping[str, str], crowd: ThreadPoolExecutor) -> None:
    def apply(number: int) -> bool:
        with psycopg.connect(urls["postgres"]) as connection:
            return watermark("crowd", connection, mode="sparse").advance("s", number % 4 + 1)

    assert sum(crowd.map(apply, range(16))) == 4


def test_updates_of_many_are_all_counted(urls: Mapping[str, str], crowd: ThreadPoolExecutor) -> None:
    with psycopg.connect(urls["postgres"]) as connection:
        database.insert_or_get(connection, "payments", {"intent": "counter", "amount": 0}, on="intent")

    def add(_: int) -> None:
        with psycopg.connect(urls["postgres"]) as connection:
            done = database.update(
                connection, "payments", where={"intent": "counter"}, change=lambda row: {"amount": row["amount"] + 1},
                tries_max=100,
            )  # fmt: skip
            assert not isinstance(done, Stale)

    list(crowd.map(add, range(16)))
    with psycopg.connect(urls["postgres"]) as connection:
        row, _ = database.insert_or_get(connection, "payments", {"intent": "counter"}, on="intent")
    assert (row["amount"], row["version"]) == (16, 17)


def test_what_takes_several_statements_needs_a_transaction(urls: Mapping[str, str]) -> None:
    """Each would commit by itself: a watermark would lose its lock, a stream keep a part."""
    with (
        psycopg.connect(urls["postgres"], autocommit=True) as postgres,
        closing(sqlite3.connect(path_of(urls["sqlite"]), isolation_level=None)) as lite,
    ):
        for connection in (postgres, lite):
            with pytest.raises(StoreMisconfigured, match="no transaction is open"):
                watermark("alone", connection).advance("source", 1)
            with pytest.raises(StoreMisconfigured, match="no transaction is open"):
                database.append(connection, "events", "alone", [{"kind": "a"}], expected=0)
            assert watermark("alone", connection).position("source") == 0
            assert database.insert_or_get(connection, "payments", {"intent": "alone"}, on="intent")[1]
        with postgres.transaction():
            assert watermark("alone", postgres).advance("source", 1)
        lite.execute("BEGIN IMMEDIATE")
        assert watermark("alone", lite).advance("source", 1)
        lite.execute("COMMIT")
