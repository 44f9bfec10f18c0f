"""A jump of the machine's wall clock changes nothing for records that are written inside of SQLite transactions."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel import Key, open_store
from semel.testing.calls import claim, occupied
from semel.transaction import within

HOUR_NS = 3_600_000_000_000
KEY = Key("t", "charge", "key")
OTHER = Key("t", "charge", "other")


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "records.db")
    with open_store(f"sqlite:///{path}") as store:  # type: ignore[attr-defined]
        store.migrate()
    return path


@pytest.fixture(params=["set by a store", "set by the first block"])
def connection(request: pytest.FixtureRequest, path: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        if request.param == "set by the first block":
            connection.execute("DROP TABLE IF EXISTS semel_clock")
            connection.commit()
        yield connection


def charge(connection: sqlite3.Connection, key: Key, *, commit: bool = True) -> bool:
    """Whether it was replayed."""
    with within(connection).operation(key, returns=str) as op:
        if not op.replayed:
            op.result = "charged"
    (connection.commit if commit else connection.rollback)()
    return op.replayed


@pytest.mark.parametrize("hours", [25, -25])
def test_an_answer_is_replayed_for_its_retention(
    connection: sqlite3.Connection, path: str, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    real_ns = time.time_ns
    assert not charge(connection, KEY)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + hours * HOUR_NS)
    assert charge(connection, KEY)
    assert not charge(connection, OTHER)
    monkeypatch.setattr(time, "time_ns", real_ns)
    assert charge(connection, OTHER)
    with open_store(f"sqlite:///{path}") as store:  # type: ignore[attr-defined]
        assert occupied(claim(store, OTHER, "by a store")).result is not None


def test_a_transaction_that_is_rolled_back_takes_its_clock_along(path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE IF EXISTS semel_clock")
        connection.commit()
        assert not charge(connection, KEY, commit=False)
        assert not charge(connection, KEY)
        assert connection.execute("SELECT count(*) FROM semel_clock").fetchone() == (1,)
