"""Two transactions with one key, by every driver at its isolation levels: the second waits for the first, within a
bound, and then replays or runs. And what happens to those that the database gives up, or somebody else ends.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

import semel
from semel.errors import InProgress, KeyReused
from semel.stores.sql.errors import retry_of
from semel.transaction import RetryTransaction, within
from transaction.modes import DJANGO, MODES, ON_SQLALCHEMYS_SQLITE, SNAPSHOTS, Mode, effects, path_of
from transaction.stage import Stage

Urls = Mapping[str, str]
CASES = [(mode, level) for mode in [*MODES, *DJANGO] for level in mode.levels]
ON_POSTGRES = [case for case in CASES if case[0].database == "postgres"]
ON_SQLITE = [case for case in CASES if case[0].database == "sqlite"]
ONE_LEVEL = [case for case in ON_POSTGRES if case[0] in DJANGO or case[1] == "read committed"]
"""Each driver at one level, and Django at all of them."""
FORMS = ("psycopg", "asyncpg", "sqlalchemy-psycopg-connection", "sqlalchemy-asyncpg-session", "django-postgres")
"""A database's error has one of these forms: the driver's own, or wrapped by those who use the driver."""
UNDER_A_SNAPSHOT = [
    (mode, level)
    for mode, level in ON_POSTGRES
    if mode.name in FORMS and (level == "repeatable read" or (mode in DJANGO and level in SNAPSHOTS))
]


def each(cases: list[tuple[Mode, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("mode", "level"), cases, ids=lambda part: part if isinstance(part, str) else part.name
    )


@each(CASES)
def test_the_second_replays_when_the_first_commits(mode: Mode, level: str, urls: Urls, stage: Stage) -> None:
    key = f"{mode.name}.{level}.commits"
    assert stage.play("twins", mode, level, key) == [1, 1]
    assert effects(urls[mode.database], key) == 1


@each([*ONE_LEVEL, *ON_SQLITE])
def test_the_second_runs_when_the_first_rolls_back(mode: Mode, level: str, urls: Urls, stage: Stage) -> None:
    key = f"{mode.name}.{level}.rolls back"
    assert stage.play("twins", mode, level, key, end="raise") == ["ArithmeticError: on purpose", 2]
    assert effects(urls[mode.database], key) == 1


@each(UNDER_A_SNAPSHOT)
def test_a_twin_that_cannot_see_the_first_is_told_to_retry(mode: Mode, level: str, urls: Urls, stage: Stage) -> None:
    """Under a snapshot the record that it has waited for is not there to be read."""
    key = f"{mode.name}.{level}.unseen"
    first, second = stage.play("twins", mode, level, key, tries_max=1)
    assert first == 1
    assert second.startswith("RetryTransaction: ")
    assert "40001" in second
    assert effects(urls[mode.database], key) == 1


@each(UNDER_A_SNAPSHOT)
def test_a_serialization_failure_of_the_work_is_the_same(mode: Mode, level: str, urls: Urls, stage: Stage) -> None:
    url, key = urls[mode.database], f"{mode.name}.{level}.outrun"
    told = stage.play("outrun", mode, level, key, tries_max=1)
    assert told.startswith("RetryTransaction: ")
    assert "40001" in told
    assert effects(url, key) == 0
    assert stage.play("outrun", mode, level, key, tries_max=2) == 2
    assert effects(url, key) == 1


@each([case for case in ONE_LEVEL if case[0].name in FORMS])
def test_a_deadlock_is_one_error_with_advice(mode: Mode, level: str, urls: Urls, stage: Stage) -> None:
    key = f"{mode.name}.{level}.deadlock"
    victim, other = sorted(stage.play("deadlock", mode, level, key))
    assert victim.startswith("RetryTransaction: ")
    assert "40P01" in victim
    assert other == "ran"
    assert effects(urls[mode.database], key) == 1


@each([(mode, level) for mode, level in ON_SQLITE if level not in ("IMMEDIATE", "EXCLUSIVE")])
def test_a_turn_to_write_that_does_not_come_is_told(mode: Mode, level: str, urls: Urls, stage: Stage) -> None:
    """Those who begin with their turn wait for it before the block, as long as their connection does."""
    key = f"{mode.name}.{level}.locked"
    told, then = stage.play("locked", mode, level, key)
    assert told.startswith("RetryTransaction: ")
    assert "wait=" in told
    assert then == 1
    assert effects(urls[mode.database], key) == 1


@each([(mode, level) for mode, level in ON_SQLITE if level == "DEFERRED" and mode.name != "sqlite3"])
def test_reading_too_early_is_told(mode: Mode, level: str, urls: Urls, stage: Stage) -> None:
    """Where the transaction begins with what is read. Python's module, and SQLAlchemy on it, begin with a write."""
    key = f"{mode.name}.{level}.too early"
    told = stage.play("too_early", mode, level, key)
    assert told.startswith("RetryTransaction: ")
    assert "BEGIN IMMEDIATE" in told
    assert [effects(urls["sqlite"], name) for name in (key, f"{key}.in between")] == [0, 1]


ENDS = [
    (mode, level, end)
    for mode in [*MODES, *DJANGO]
    for level in (mode.levels if mode in DJANGO or mode.levels == ON_SQLALCHEMYS_SQLITE else ("",))
    for end in ("commit", "rollback")
    if mode.name not in ("asyncpg", "psycopg-transaction")
]


@pytest.mark.parametrize(("mode", "level", "end"), ENDS, ids=lambda part: part if isinstance(part, str) else part.name)
def test_ending_the_transaction_inside_of_the_block_is_refused(
    mode: Mode, level: str, end: str, urls: Urls, stage: Stage
) -> None:
    """SQLAlchemy refuses by itself to go on in a transaction that was ended."""
    url, key = urls[mode.database], f"{mode.name}.{level}.ended by {end}"
    refused = stage.play("ended", mode, level, key, end=end)
    ways = ("Misuse: ",) if mode in DJANGO else ("Misuse: ", "InvalidRequestError: ", "OperationalError: ")
    assert refused.startswith(ways), refused
    with semel.open_store(url) as store:  # type: ignore[attr-defined]
        record = store.get(semel.Key("", "operation", key))
    if end == "commit":  # the effect is there, and nobody may say that it is all of the work
        assert record is not None
        assert record.in_progress()
        assert stage.play("ended", mode, level, key, end="").startswith("OutcomeUnknown: ")
    else:
        assert record is None
    assert effects(url, key) == (1 if end == "commit" else 0)


def test_the_bound_is_kept_and_the_transaction_stays_usable(urls: Urls) -> None:
    url = urls["postgres"]
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        second.execute("SET lock_timeout = '7s'")
        second.commit()
        block = within(first).operation("bound", scope="operation")
        assert not block.__enter__().replayed
        second.execute("INSERT INTO effects (name) VALUES ('before the twin')")
        with pytest.raises(InProgress, match="50 ms") as caught:
            within(second).operation("bound", scope="operation", wait=0.05).__enter__()
        assert caught.value.retry_after > 0
        assert second.execute("SHOW lock_timeout").fetchone() == ("7s",)
        second.commit()
        block.__exit__(None, None, None)
    assert effects(url, "before the twin") == 1


def test_the_bound_is_kept_when_the_first_had_waited_itself(urls: Urls) -> None:
    """A twin that got the key by waiting holds up the next one no longer than its bound, either."""
    url, key = urls["postgres"], "handed over"
    with psycopg.connect(url) as first, psycopg.connect(url) as second, psycopg.connect(url) as third:
        third.execute("SET statement_timeout = '2s'")
        third.commit()
        with ThreadPoolExecutor(1) as pool:  # in a thread of its own: what is entered here is never left
            assert not pool.submit(within(first).operation(key, scope="operation").__enter__).result().replayed
            waiting = pool.submit(within(second).operation(key, scope="operation", wait=5).__enter__)
            waits = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
            while first.execute(waits, [second.info.backend_pid]).fetchone() != ("Lock",):
                first.execute("SELECT pg_stat_clear_snapshot()")
            first.rollback()
            assert not waiting.result().replayed
        with pytest.raises(InProgress, match="50 ms"):
            within(third).operation(key, scope="operation", wait=0.05).__enter__()


def test_another_fingerprint_is_in_progress_until_the_first_commits(urls: Urls) -> None:
    """Nobody else can read the record of an open transaction, so nobody can compare its fingerprint."""
    with psycopg.connect(urls["postgres"]) as first, psycopg.connect(urls["postgres"]) as second:
        with within(first).operation("compared", scope="operation", fingerprint="one") as op:
            assert not op.replayed
            with pytest.raises(InProgress):
                within(second).operation("compared", scope="operation", fingerprint="another", wait=0.05).__enter__()
        first.commit()
        with pytest.raises(KeyReused):
            within(second).operation("compared", scope="operation", fingerprint="another").__enter__()


def test_the_lock_timeout_is_as_before_after_waiting(urls: Urls) -> None:
    """A collision of the advisory locks of two keys only means that the long way is taken, and to wait for the lock."""
    url = urls["postgres"]
    with psycopg.connect(url) as other, psycopg.connect(url) as connection:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("semel.stores.postgres.transaction._lock", lambda _: 1)
            other.execute("SELECT pg_advisory_lock(1)")
            with pytest.raises(InProgress):
                within(connection).operation("collides", scope="operation", wait=0.01).__enter__()
            assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)
            unlock = threading.Timer(0.1, other.execute, ["SELECT pg_advisory_unlock(1)"])
            unlock.start()
            with within(connection).operation("collides", scope="operation") as op:
                assert not op.replayed
                assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)
                op.result = "the long way"
            unlock.join()
        connection.commit()
        with within(connection).operation("collides", scope="operation") as op:
            assert (op.replayed, op.result) == (True, "the long way")


def test_sqlite_says_to_begin_immediately_when_it_has_read_too_early(urls: Urls) -> None:
    path = path_of(urls["sqlite"])
    first, second = sqlite3.connect(path, isolation_level=None), sqlite3.connect(path, isolation_level=None, timeout=0)
    second.execute("BEGIN")
    second.execute("SELECT * FROM effects").fetchall()
    first.execute("INSERT INTO effects (name) VALUES ('in between')")
    with pytest.raises(RetryTransaction, match="BEGIN IMMEDIATE"):
        within(second).operation("too early", scope="operation").__enter__()
    second.rollback()
    first.execute("BEGIN IMMEDIATE")
    second.execute("BEGIN")
    with pytest.raises(RetryTransaction, match="wait="):
        within(second).operation("locked", scope="operation", wait=0.02).__enter__()
    assert second.execute("PRAGMA busy_timeout").fetchone() == (0,)
    first.close()
    second.close()


def test_other_errors_are_the_drivers_own() -> None:
    assert retry_of(ValueError("40001")) is None
