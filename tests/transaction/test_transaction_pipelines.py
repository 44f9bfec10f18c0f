"""psycopg's pipeline mode: a block works in it, and waits for its own rows only."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.pq import TransactionStatus

import semel
from semel.database import insert_or_get
from semel.errors import InProgress, StoreMisconfigured
from semel.transaction import run, within
from transaction.modes import effects, sqlalchemy_url
from transaction.stage import TESTS

WRITE = "INSERT INTO effects (name) VALUES (%s)"
each_nesting = pytest.mark.parametrize("nesting", ["pipeline transaction", "transaction pipeline", "pipeline"])


@pytest.fixture
def url(urls: Mapping[str, str]) -> str:
    return urls["postgres"]


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url) as connection:
        yield connection


def operate(connection: psycopg.Connection[Any], key: str, nesting: str) -> str:
    with ExitStack() as stack:
        for each in nesting.split():
            stack.enter_context(getattr(connection, each)())
        with within(connection).operation(key, scope="operation") as op:
            if op.replayed:
                return f"replayed {op.result}"
            connection.execute(WRITE, [key])
            op.result = key
        if "transaction" not in nesting:
            connection.commit()
    return "ran"


@each_nesting
@pytest.mark.parametrize("autocommit", [False, True])
def test_a_block_runs_once_in_a_pipeline(url: str, nesting: str, autocommit: bool) -> None:
    key = f"{nesting}.{autocommit}"
    with psycopg.connect(url, autocommit=autocommit) as connection:
        if autocommit and "transaction" not in nesting:
            with pytest.raises(StoreMisconfigured, match="no transaction is open"):
                operate(connection, key, nesting)
            return
        assert [operate(connection, key, nesting) for _ in range(2)] == ["ran", f"replayed {key}"]
    assert effects(url, key) == 1


@each_nesting
def test_a_block_runs_once_in_a_pipeline_of_tasks(url: str, nesting: str) -> None:
    key = f"{nesting}.tasks"

    async def once() -> str:
        async with await psycopg.AsyncConnection.connect(url) as connection, AsyncExitStack() as stack:
            for each in nesting.split():
                await stack.enter_async_context(getattr(connection, each)())
            async with within(connection).operation(key, scope="operation") as op:
                if op.replayed:
                    return f"replayed {op.result}"
                await connection.execute(WRITE, [key])
                op.result = key
        return "ran"

    assert [asyncio.run(once()) for _ in range(2)] == ["ran", f"replayed {key}"]
    assert effects(url, key) == 1


def test_a_statement_that_fails_in_the_pipeline_takes_the_record_along(
    connection: psycopg.Connection[Any], url: str
) -> None:
    """Its error is not known before the block ends: storing the result is what finds it."""

    def pay(ending: str) -> None:
        with (
            connection.pipeline(),
            connection.transaction(),
            within(connection).operation("fails", scope="operation") as op,
        ):
            assert not op.replayed
            connection.execute(WRITE, ["fails"])
            connection.execute(ending.encode())
            op.result = "paid"

    with pytest.raises(psycopg.errors.DivisionByZero):
        pay("SELECT 1/0")
    assert (effects(url, "fails"), connection.info.transaction_status) == (0, TransactionStatus.IDLE)
    with semel.open_store(url) as store:  # type: ignore[attr-defined]
        assert store.get(semel.Key("", "operation", "fails")) is None
    pay("SELECT 1")
    assert effects(url, "fails") == 1


def test_an_error_from_before_the_block_keeps_it_from_running(connection: psycopg.Connection[Any], url: str) -> None:
    def pay() -> None:
        with connection.pipeline(), connection.transaction():
            connection.execute("SELECT 1/0")
            with within(connection).operation("poisoned", scope="operation"):
                raise AssertionError("entered")

    with pytest.raises(psycopg.errors.DivisionByZero):
        pay()


def test_a_twin_in_a_pipeline_waits_within_its_bound_and_can_go_on(
    connection: psycopg.Connection[Any], url: str
) -> None:
    with psycopg.connect(url) as first, within(first).operation("twin", scope="operation") as op:
        assert not op.replayed
        with connection.pipeline() as pipeline, connection.transaction():
            with pytest.raises(InProgress), within(connection).operation("twin", scope="operation", wait=0.02):
                pass
            pipeline.sync()
            assert connection.info.transaction_status == TransactionStatus.INTRANS
            assert connection.execute("SELECT 42").fetchone() == (42,)


def test_a_statement_that_was_sent_is_no_transaction(url: str) -> None:
    """In autocommit mode it ends by itself at the next wait, and the claim would, too."""
    with psycopg.connect(url, autocommit=True) as connection, connection.pipeline():
        connection.execute(WRITE, ["sent"])
        with pytest.raises(semel.SemelError) as refused, within(connection).operation("sent", scope="operation") as op:
            assert not op.replayed
        assert "no transaction is open" in str(refused.value)
    with semel.open_store(url) as store:  # type: ignore[attr-defined]
        assert store.get(semel.Key("", "operation", "sent")) is None


def test_run_and_the_database_functions_work_in_a_pipeline(connection: psycopg.Connection[Any], url: str) -> None:
    @contextmanager
    def begin() -> Iterator[psycopg.Connection[Any]]:
        with connection.pipeline(), connection.transaction():
            yield connection

    def work(connection: psycopg.Connection[Any]) -> bool:
        return insert_or_get(connection, "effects", {"id": -7, "name": "pipelined"}, on="id")[1]

    assert [run(begin, "pipelined", work) for _ in range(2)] == [True, True]
    assert effects(url, "pipelined") == 1


def test_sqlalchemy_is_refused_in_a_pipeline_by_name(url: str) -> None:
    engine = sa.create_engine(sqlalchemy_url(url, "psycopg"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        below: Any = connection.connection.driver_connection
        with (
            below.pipeline(),
            pytest.raises(StoreMisconfigured, match=r"below SQLAlchemy is in pipeline mode.*leave the pipeline\(\)"),
            within(connection).operation("orm", scope="operation"),
        ):
            pass


def test_django_is_refused_in_a_pipeline_by_name(urls: Mapping[str, str]) -> None:
    command = [sys.executable, "-c", IN_DJANGO, urls["postgres"], urls["sqlite"]]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert "below Django is in pipeline mode" in said


IN_DJANGO = """
import sys
from transaction.victims import configure

configure(*sys.argv[1:])
from django.db import connection, transaction

from semel import StoreMisconfigured
from semel.transaction import within

with transaction.atomic(), connection.connection.pipeline():
    try:
        with within(connection).operation("k", scope="operation"):
            print("entered")
    except StoreMisconfigured as error:
        print(error)
"""
