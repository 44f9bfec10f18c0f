"""Two transactions with one key: the second waits for the first, within a bound, and then replays or runs."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from semel.errors import InProgress
from semel.transaction import RetryTransaction, arun, run, within
from semel.transaction.errors import retry_of
from transaction.modes import MODES, Mode, effects, path_of

CASES = [
    (mode, level)
    for mode in MODES
    for level in (
        ("read committed", "repeatable read", "serializable")
        if mode.database == "postgres"
        else ("DEFERRED", "IMMEDIATE")
        if mode.name in ("sqlite3", "aiosqlite")
        else ("",)
    )
]
ONE_LEVEL = list({mode.name: (mode, level) for mode, level in reversed(CASES)}.values())
PATIENCE_S = 30.0


def somebody_waits(url: str) -> bool:
    """On SQLite nobody can tell: the twin has a moment to get there, and it makes no difference if it does not."""
    if url.startswith("sqlite"):
        time.sleep(0.01)
        return True
    with psycopg.connect(url) as connection:
        sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return connection.execute(sql).fetchone() is not None


def twins(mode: Mode, url: str, level: str, key: str, end: Callable[[], None]) -> list[Any]:
    """Two calls of `run`. The first does `end` in its transaction when the second waits for it."""
    entered = threading.Event()

    def ending(number: int) -> int:
        if number == 1:
            entered.set()
            deadline = time.monotonic() + PATIENCE_S
            while not somebody_waits(url):
                assert time.monotonic() < deadline, "the twin never waited"
                time.sleep(0.01)
            end()
        return number

    def call(number: int) -> Any:
        def work(connection: Any) -> int:
            mode.write(connection, key)
            if mode.name.endswith("session"):
                connection.flush()
            return ending(number)

        async def awork(connection: Any) -> int:
            await mode.write(connection, key)
            return await asyncio.to_thread(ending, number)

        begin = mode.opener(url, level)
        if mode.is_async:
            return asyncio.run(arun(begin, key, awork))
        return run(begin, key, work)

    with ThreadPoolExecutor(2) as pool:
        first: Future[Any] = pool.submit(call, 1)
        first.add_done_callback(lambda _: entered.set())
        assert entered.wait(PATIENCE_S)
        assert not first.done(), first.exception()
        second = pool.submit(call, 2)
        return [_outcome(first), _outcome(second)]


def _outcome(future: Future[Any]) -> Any:
    try:
        return future.result(PATIENCE_S)
    except ArithmeticError as error:
        return error


@pytest.mark.parametrize(("mode", "level"), CASES, ids=lambda part: part if isinstance(part, str) else part.name)
def test_the_second_replays_when_the_first_commits(mode: Mode, level: str, urls: Mapping[str, str]) -> None:
    url, key = urls[mode.database], f"{mode.name}.{level}.commits"
    assert twins(mode, url, level, key, lambda: None) == [1, 1]
    assert effects(url, key) == 1


@pytest.mark.parametrize(("mode", "level"), ONE_LEVEL, ids=lambda part: part if isinstance(part, str) else part.name)
def test_the_second_runs_when_the_first_rolls_back(mode: Mode, level: str, urls: Mapping[str, str]) -> None:
    url, key = urls[mode.database], f"{mode.name}.{level}.rolls back"

    def end() -> None:
        raise ArithmeticError("on purpose")

    first, second = twins(mode, url, level, key, end)
    assert (type(first), second) == (ArithmeticError, 2)
    assert effects(url, key) == 1


def test_the_bound_is_kept_and_the_transaction_stays_usable(urls: Mapping[str, str]) -> None:
    url = urls["postgres"]
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        second.execute("SET lock_timeout = '7s'")
        second.commit()
        block = within(first).operation("bound")
        assert not block.__enter__().replayed
        second.execute("INSERT INTO effects (name) VALUES ('before the twin')")
        with pytest.raises(InProgress, match="50 ms") as caught:
            within(second).operation("bound", wait=0.05).__enter__()
        assert caught.value.retry_after > 0
        assert second.execute("SHOW lock_timeout").fetchone() == ("7s",)
        second.commit()
        block.__exit__(None, None, None)
    assert effects(url, "before the twin") == 1


def test_the_lock_timeout_is_as_before_after_waiting(urls: Mapping[str, str]) -> None:
    """A collision of the advisory locks of two keys only means that the long way is taken."""
    url = urls["postgres"]
    with psycopg.connect(url) as other, psycopg.connect(url) as connection:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("semel.transaction.postgres._lock", lambda _: 1)
            other.execute("SELECT pg_advisory_lock(1)")
            with within(connection).operation("collides") as op:
                assert not op.replayed
                assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)
                op.result = "the long way"
        connection.commit()
        with within(connection).operation("collides") as op:
            assert (op.replayed, op.result) == (True, "the long way")


def test_a_deadlock_is_one_error_with_advice(urls: Mapping[str, str]) -> None:
    url = urls["postgres"]
    barrier = threading.Barrier(2)

    def both(one: str, other: str) -> str:
        with psycopg.connect(url) as connection, within(connection).operation(one) as op:
            assert not op.replayed
            barrier.wait(PATIENCE_S)
            with within(connection).operation(other) as inner:
                assert not inner.replayed
        return "ran"

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(both, *keys) for keys in (("dead", "lock"), ("lock", "dead"))]
        errors = [future.exception(PATIENCE_S) for future in futures]
    assert sum(isinstance(error, RetryTransaction) for error in errors) >= 1
    assert "40P01" in str(next(error for error in errors if isinstance(error, RetryTransaction)))


def test_a_serialization_failure_of_the_work_is_the_same_error(urls: Mapping[str, str]) -> None:
    url = urls["postgres"]
    with psycopg.connect(url) as connection, psycopg.connect(url) as other:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("INSERT INTO effects (id, name) VALUES (-1, 'contended')")
        connection.commit()
        block = within(connection).operation("serialized")
        assert not block.__enter__().replayed
        connection.execute("SELECT 1 FROM effects").fetchall()
        other.execute("UPDATE effects SET name = 'changed' WHERE id = -1")
        other.commit()
        with pytest.raises(psycopg.errors.SerializationFailure) as caught:
            connection.execute("UPDATE effects SET name = 'lost' WHERE id = -1")
        with pytest.raises(RetryTransaction, match="40001"):
            block.__exit__(type(caught.value), caught.value, None)
        connection.rollback()


def test_sqlite_says_to_begin_immediately_when_it_has_read_too_early(urls: Mapping[str, str]) -> None:
    path = path_of(urls["sqlite"])
    first, second = sqlite3.connect(path, isolation_level=None), sqlite3.connect(path, isolation_level=None, timeout=0)
    second.execute("BEGIN")
    second.execute("SELECT * FROM effects").fetchall()
    first.execute("INSERT INTO effects (name) VALUES ('in between')")
    with pytest.raises(RetryTransaction, match="BEGIN IMMEDIATE"):
        within(second).operation("too early").__enter__()
    second.rollback()
    first.execute("BEGIN IMMEDIATE")
    second.execute("BEGIN")
    with pytest.raises(RetryTransaction, match="wait="):
        within(second).operation("locked", wait=0.02).__enter__()
    assert second.execute("PRAGMA busy_timeout").fetchone() == (0,)
    first.close()
    second.close()


def test_other_errors_are_the_drivers_own() -> None:
    assert retry_of(ValueError("40001")) is None
