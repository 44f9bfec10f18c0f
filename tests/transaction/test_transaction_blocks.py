"""One block in every mode: what runs, what is replayed, what is refused, and what a transaction leaves behind."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

import semel
from semel.codecs.sealed import Seal
from semel.connections.psycopg import PsycopgDriver
from semel.errors import KeyReused, Misuse, OutcomeUnknown, StoreMisconfigured, Unstorable
from semel.transaction import within
from transaction.modes import MODES, Effect, Mode, effects, path_of, sqlalchemy_url
from transaction.stage import Stage

each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
NO_RESULT: Any = object()


def operate(
    mode: Mode,
    url: str,
    key: str,
    *,
    end: str = "",
    result: Any = NO_RESULT,
    seal: Seal | None = None,
    **options: Any,
) -> Any:
    """One operation with one effect. `end` is what happens at the end of the block; says the result, and if it ran."""

    def sync() -> Any:
        with (
            mode.begin(url, "") as connection,
            within(connection, seal=seal).operation(key, scope="operation", **options) as op,
        ):
            if op.replayed:
                return op.result, "replayed"
            mode.write(connection, key)
            op.result = key if result is NO_RESULT else result
            if end == "raise":
                raise ArithmeticError("on purpose")
        return op.result, "ran"

    async def tasks() -> Any:
        async with (
            mode.begin(url, "") as connection,
            within(connection, seal=seal).operation(key, scope="operation", **options) as op,
        ):
            if op.replayed:
                return op.result, "replayed"
            await mode.write(connection, key)
            op.result = key if result is NO_RESULT else result
            if end == "raise":
                raise ArithmeticError("on purpose")
        return op.result, "ran"

    return asyncio.run(tasks()) if mode.is_async else sync()


@each_mode
def test_runs_once_and_is_replayed(mode: Mode, urls: Mapping[str, str]) -> None:
    url, key = urls[mode.database], f"{mode.name}.once"
    assert operate(mode, url, key, result=None) == (None, "ran")
    assert operate(mode, url, key) == (None, "replayed")
    assert effects(url, key) == 1
    with pytest.raises(KeyReused):
        operate(mode, url, key, fingerprint="another")
    with semel.open_store(url) as store:  # type: ignore[attr-defined]
        record = store.get(semel.Key("", "operation", key))
    assert (record.state.value, record.attempt, bool(record.owner)) == ("succeeded", 1, True)
    assert record.expires_ms - record.completed_ms == 24 * 3600 * 1000


@each_mode
def test_a_rollback_takes_the_record_along(mode: Mode, urls: Mapping[str, str]) -> None:
    url, key = urls[mode.database], f"{mode.name}.rollback"
    with pytest.raises(ArithmeticError):
        operate(mode, url, key, end="raise")
    assert effects(url, key) == 0
    assert operate(mode, url, key) == (key, "ran")
    assert effects(url, key) == 1


def test_ending_the_transaction_with_statements_is_refused(urls: Mapping[str, str]) -> None:
    async def on_asyncpg() -> None:
        connection = await asyncpg.connect(urls["postgres"])
        async with connection.transaction(), within(connection).operation("asyncpg.commit", scope="operation") as op:
            assert not op.replayed
            await connection.execute("COMMIT")
            await connection.execute("BEGIN")

    with pytest.raises(Misuse):
        asyncio.run(on_asyncpg())
    lite = sqlite3.connect(path_of(urls["sqlite"]))
    with lite:
        block = within(lite).operation("sqlite.commit", scope="operation")
        assert not block.__enter__().replayed
        lite.commit()
        lite.execute("INSERT INTO effects (name) VALUES ('another transaction')")
        with pytest.raises(Misuse):
            block.__exit__(None, None, None)
    lite.close()


@each_mode
def test_who_does_not_look_commits_nothing(mode: Mode, urls: Mapping[str, str]) -> None:
    url, key = urls[mode.database], f"{mode.name}.look"

    def sync() -> None:
        with mode.begin(url, "") as connection, within(connection).operation(key, scope="operation"):
            mode.write(connection, key)

    async def tasks() -> None:
        async with mode.begin(url, "") as connection, within(connection).operation(key, scope="operation"):
            await mode.write(connection, key)

    with pytest.raises(Misuse, match=r"op\.replayed"):
        asyncio.run(tasks()) if mode.is_async else sync()
    assert effects(url, key) == 0


@each_mode
def test_a_result_that_cannot_be_stored_rolls_back(mode: Mode, urls: Mapping[str, str]) -> None:
    url, key = urls[mode.database], f"{mode.name}.unstorable"
    for unfit in (object(), b"x" * 1_100_000):
        with pytest.raises(Unstorable):
            operate(mode, url, key, result=unfit)
    assert effects(url, key) == 0


def test_autocommit_is_refused_on_every_driver(urls: Mapping[str, str]) -> None:
    postgres, sqlite = urls["postgres"], urls["sqlite"]
    lite = sqlite3.connect(path_of(sqlite), isolation_level=None)
    with pytest.raises(StoreMisconfigured, match="BEGIN IMMEDIATE"):
        within(lite).operation("a", scope="operation").__enter__()
    lite.execute("BEGIN")
    with within(lite).operation("begun by hand", scope="operation") as op:
        assert not op.replayed
    lite.execute("COMMIT")
    lite.close()
    with (
        psycopg.connect(postgres, autocommit=True) as connection,
        pytest.raises(StoreMisconfigured, match="autocommit"),
    ):
        within(connection).operation("a", scope="operation").__enter__()

    async def tasks() -> None:
        connection = await asyncpg.connect(postgres)
        with pytest.raises(StoreMisconfigured, match=r"connection\.transaction"):
            await within(connection).operation("a", scope="operation").__aenter__()
        await connection.close()
        async with aiosqlite.connect(path_of(sqlite), isolation_level=None) as light:
            with pytest.raises(StoreMisconfigured, match="BEGIN IMMEDIATE"):
                await within(light).operation("a", scope="operation").__aenter__()

    asyncio.run(tasks())


@pytest.mark.parametrize(
    "mode", [mode for mode in MODES if mode.name.startswith("sqlalchemy")], ids=lambda mode: mode.name
)
def test_autocommit_is_refused_on_sqlalchemy(mode: Mode, urls: Mapping[str, str], stage: Stage) -> None:
    key = f"{mode.name}.autocommit"
    told = stage.play("ended", mode, "autocommit", key, end="")
    assert told.startswith("StoreMisconfigured: ")
    assert "AUTOCOMMIT" in told
    with semel.open_store(urls[mode.database]) as store:  # type: ignore[attr-defined]
        assert store.get(semel.Key("", "operation", key)) is None
    assert effects(urls[mode.database], key) == 0


OUTSIDE_ATOMIC = """
import django, semel
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()
from django.db import connection
from semel.transaction import within
try:
    within(connection).operation("a", scope="operation").__enter__()
except semel.StoreMisconfigured as error:
    print(error)
"""


def test_django_outside_of_atomic_is_refused() -> None:
    said = subprocess.run([sys.executable, "-c", OUTSIDE_ATOMIC], capture_output=True, text=True, check=True).stdout
    assert "transaction.atomic(using='default')" in said


def test_what_is_not_a_connection_is_refused_by_name(urls: Mapping[str, str]) -> None:
    with pytest.raises(TypeError, match=r"psycopg, asyncpg, sqlite3.*builtins\.str"):
        within("postgresql://")
    with Session(sa.create_engine("mysql+pymysql://")) as session:
        assert within(session) is not None  # it connects when it is used
    foreign: Any = type("Connection", (), {"__module__": "MySQLdb.connections"})
    with pytest.raises(TypeError, match=r"not MySQLdb\.connections\.Connection; to MariaDB, use PyMySQL or aiomysql"):
        within(foreign())
    with (
        Session(sa.create_engine("postgresql+pg8000://", module=psycopg)) as session,
        pytest.raises(StoreMisconfigured, match=r"does not know postgresql\+pg8000"),
    ):
        within(session)
    lite = sqlite3.connect(path_of(urls["sqlite"]))
    with pytest.raises(TypeError, match="a sync connection: write `with"):
        asyncio.run(within(lite).operation("a", scope="operation").__aenter__())
    lite.close()


def test_a_database_without_our_tables_says_how_to_make_them() -> None:
    lite = sqlite3.connect(":memory:")
    with pytest.raises(StoreMisconfigured, match="migrate"):
        within(lite).operation("a", scope="operation").__enter__()
    lite.close()


def test_records_are_shared_with_the_other_fronts(urls: Mapping[str, str]) -> None:
    """What was done in a transaction is replayed to a function, and the other way round."""
    for database, url in urls.items():
        mode = next(mode for mode in MODES if mode.database == database)
        operate(mode, url, "shared", fingerprint=[1])
        with semel.open_store(url) as store:  # type: ignore[attr-defined]
            with semel.operation("shared", scope="operation", store=store, fingerprint=[1]) as op:
                assert (op.replayed, op.result) == (True, "shared")
            with semel.operation("shared the other way", scope="operation", store=store) as op:
                assert not op.replayed
                op.result = 7
        assert operate(mode, url, "shared the other way") == (7, "replayed")


def test_a_record_past_retention_is_a_first_call_again(urls: Mapping[str, str]) -> None:
    for database, url in urls.items():
        mode = next(mode for mode in MODES if mode.database == database)
        operate(mode, url, "short", result=1, retention=0.001)
        assert operate(mode, url, "short", result=2) == (2, "ran")
        assert operate(mode, url, "short") == (2, "replayed")


def test_tables_in_another_schema(postgres_url: str) -> None:
    url = f"{postgres_url}?schema=apart"
    with semel.open_store(url) as store:  # type: ignore[attr-defined]
        store.migrate()
        with (
            psycopg.connect(postgres_url) as made,
            within(made, schema="apart").operation("there", scope="operation") as op,
        ):
            assert not op.replayed
        assert store.get(semel.Key("", "operation", "there")) is not None


def test_the_happy_path_is_two_statements_and_a_replay_one(urls: Mapping[str, str]) -> None:
    seen: list[str] = []
    plain = PsycopgDriver.perform

    def perform(driver: PsycopgDriver, statement: Any) -> Any:
        seen.append(statement.sql.split()[0])
        return plain(driver, statement)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PsycopgDriver, "perform", perform)
        operate(MODES[0], urls["postgres"], "counted")
        assert seen == ["WITH", "WITH"]
        operate(MODES[0], urls["postgres"], "counted")
        assert seen[2:] == ["WITH"]


def test_leaving_flushes_the_orm(urls: Mapping[str, str]) -> None:
    """What the database refuses is raised inside of the transaction, before the result is stored."""
    with Session(sa.create_engine(sqlalchemy_url(urls["postgres"], "psycopg"), poolclass=sa.NullPool)) as session:
        block = within(session).operation("flushed", scope="operation")
        assert not block.__enter__().replayed
        session.add(Effect(name=None))
        with pytest.raises(sa.exc.IntegrityError):
            block.__exit__(None, None, None)
    with pytest.raises(OutcomeUnknown):  # caught, and committed all the same: nobody may say that it is all of the work
        _swallow(urls["sqlite"])


def _swallow(url: str) -> None:
    mode = next(mode for mode in MODES if mode.name == "sqlite3")
    with (
        mode.begin(url, "") as made,
        suppress(ArithmeticError),
        within(made).operation("swallowed", scope="operation") as op,
    ):
        assert not op.replayed
        raise ArithmeticError
    operate(mode, url, "swallowed")
