"""A schema of another version: transactions use it only if it says that they may, as the ordinary stores do."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import asyncpg
import psycopg
import pytest

import semel
from semel.errors import StoreMisconfigured
from semel.flow import Flow, tx
from semel.stores.mariadb import schema as mariadb_schema
from semel.stores.mariadb import transaction_queries as mariadb
from semel.stores.postgres import schema as postgres_schema
from semel.stores.postgres import transaction_queries as postgres
from semel.stores.sqlite import schema as sqlite_schema
from semel.stores.sqlite import transaction as sqlite
from semel.transaction import TransactionStore, run, within
from transaction.modes import MODES, ON_MARIADB, Mode, effects, is_mariadb, mariadb_rows, path_of
from transaction.test_transaction_blocks import operate

each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
FIRST = [MODES[0], MODES[8], ON_MARIADB[0]]
each_database = pytest.mark.parametrize("mode", FIRST, ids=lambda mode: mode.database)
NEWER = "has version 99, which needs a semel that knows version 99; this one knows 2: upgrade semel"


def execute(url: str, sql: str) -> list[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path_of(url))) as lite, lite:
            return lite.execute(sql).fetchall()
    if is_mariadb(url):
        return list(mariadb_rows(url, sql))
    with psycopg.connect(url) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def url(mode: Mode, urls: Mapping[str, str]) -> Iterator[str]:
    """A database whose book of migrations is put right afterwards."""
    yield urls[mode.database]
    execute(urls[mode.database], "DELETE FROM semel_schema WHERE number > 2")


def migrated(url: str, readable_from: int) -> None:
    execute(url, f"INSERT INTO semel_schema VALUES (99, 'of the future', {readable_from})")


def records(url: str, key: str) -> int:
    [(count,)] = execute(url, f"SELECT count(*) FROM semel_records WHERE name = '{key}'")
    return int(count)


@each_mode
def test_a_newer_schema_is_neither_written_nor_read(mode: Mode, url: str) -> None:
    new, done = f"{mode.name}.new", f"{mode.name}.done"
    operate(mode, url, done)
    migrated(url, readable_from=99)
    for key in (new, done):
        with pytest.raises(StoreMisconfigured, match=NEWER):
            operate(mode, url, key)
    assert (effects(url, new), records(url, new)) == (0, 0)
    assert (effects(url, done), records(url, done)) == (1, 1)


@each_mode
def test_a_newer_schema_that_says_so_is_used(mode: Mode, url: str) -> None:
    key = f"{mode.name}.readable"
    migrated(url, readable_from=1)
    assert operate(mode, url, key) == (key, "ran")
    assert operate(mode, url, key) == (key, "replayed")
    assert effects(url, key) == 1


@each_database
def test_a_transaction_that_goes_on_after_the_refusal_commits_no_record(mode: Mode, url: str) -> None:
    key = f"{mode.name}.caught"
    migrated(url, readable_from=99)
    with mode.begin(url, "") as connection:
        with pytest.raises(StoreMisconfigured), within(connection).operation(key, scope="operation"):
            pass
        mode.write(connection, key)
    assert (effects(url, key), records(url, key)) == (1, 0)
    assert execute(url, "SELECT number, readable_from FROM semel_schema ORDER BY number") == [(1, 1), (2, 1), (99, 99)]


@pytest.mark.parametrize("mode", FIRST[:2], ids=lambda mode: mode.database)
def test_an_open_connection_notices_a_migration_in_another_process(mode: Mode, url: str) -> None:
    """Nothing is kept: each claim looks, on PostgreSQL within its own statement."""
    on_sqlite = url.startswith("sqlite")
    connection: Any = sqlite3.connect(path_of(url)) if on_sqlite else psycopg.connect(url)
    begin = (lambda: connection) if on_sqlite else connection.transaction
    with closing(connection):
        with begin(), within(connection).operation(f"{mode.name}.before", scope="operation") as op:
            assert not op.replayed
        migrated(url, readable_from=99)
        with (
            pytest.raises(StoreMisconfigured, match=NEWER),
            begin(),
            within(connection).operation("after", scope="operation"),
        ):
            pass


@each_database
def test_run_a_store_with_transactions_and_a_flow_refuse_it_too(mode: Mode, url: str) -> None:
    key = f"{mode.name}.others"
    begin = mode.opener(url)
    with closing(semel.open_store(url)) as store:
        steps: Any = [tx("step", lambda op, connection: mode.write(connection, key))]
        flow = Flow("newer", steps, store=store, input=str, returns=object, transaction=begin)
        store.get(semel.Key("", "", "a first use, before the migration"))
        migrated(url, readable_from=99)
        for act in (
            lambda: run(begin, key, lambda connection: mode.write(connection, key), scope="operation"),
            lambda: TransactionStore(begin).request().get(semel.Key("", "operation", key)),
            lambda: flow.run(key, "x"),
        ):
            with pytest.raises(StoreMisconfigured, match=NEWER):
                act()
    assert effects(url, key) == 0


def test_the_book_of_a_named_schema_counts(urls: Mapping[str, str]) -> None:
    postgres_url = urls["postgres"]
    store: Any = semel.open_store(f"{postgres_url}?schema=billing")
    store.migrate()
    store.close()
    migrated(postgres_url, readable_from=99)
    with (
        psycopg.connect(postgres_url) as connection,
        within(connection, schema="billing").operation("k", scope="operation") as op,
    ):
        assert not op.replayed
    execute(postgres_url, "DELETE FROM semel_schema WHERE number = 99")
    execute(postgres_url, "INSERT INTO billing.semel_schema VALUES (99, 'of the future', 99)")
    with (
        psycopg.connect(postgres_url) as connection,
        pytest.raises(StoreMisconfigured, match=NEWER),
        within(connection, schema="billing").operation("k", scope="operation"),
    ):
        pass


def test_a_user_who_may_not_read_the_book_is_told_what_is_needed(urls: Mapping[str, str]) -> None:
    postgres_url, clerk = urls["postgres"], f"clerk_{uuid.uuid4().hex[:8]}"
    execute(postgres_url, f"CREATE ROLE {clerk}")
    execute(postgres_url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON semel_records TO {clerk}")

    async def play() -> None:
        connection = await asyncpg.connect(postgres_url)
        try:
            await connection.execute(f"SET ROLE {clerk}")
            async with connection.transaction(), within(connection).operation("k", scope="operation"):
                pass
        finally:
            await connection.close()

    try:
        with pytest.raises(
            StoreMisconfigured, match=r"semel_schema.*needs SELECT, INSERT, UPDATE, DELETE on semel_rec"
        ):
            asyncio.run(play())
    finally:
        execute(postgres_url, f"DROP OWNED BY {clerk}; DROP ROLE {clerk}")


def test_the_numbers_are_those_of_the_stores() -> None:
    assert postgres_schema.MIGRATIONS[-1].number == postgres.KNOWN
    assert sqlite_schema.MIGRATIONS[-1].number == sqlite.KNOWN
    assert mariadb_schema.MIGRATIONS[-1].number == mariadb.KNOWN
