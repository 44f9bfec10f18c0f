"""Blocks on MariaDB: what only MariaDB does. Locks that end a wait or a transaction, snapshots, and what a session is
set to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any
from uuid import uuid4

import pymysql
import pytest
from pymysql.err import OperationalError

import semel
from semel.connections.pymysql import PymysqlDriver
from semel.errors import InProgress, KeyReused, Misuse, OutcomeUnknown, StoreMisconfigured
from semel.transaction import RetryTransaction, within
from servers.mariadb import MariadbServer, arguments
from servers.needing import needed
from transaction.modes import DJANGO, ON_MARIADB, effects, is_mariadb, mariadb_rows, prepare, pymysql_write
from transaction.outbox_rows import ids
from transaction.scenarios import told, until_somebody_waits
from transaction.stage import Stage

pytestmark = pytest.mark.timeout(120)
PLAIN = ON_MARIADB[0]
FORMS = [
    mode
    for mode in [*ON_MARIADB, *DJANGO]
    if mode.name in ("pymysql", "aiomysql", "sqlalchemy-pymysql-session", "django-mariadb")
]
each_form = pytest.mark.parametrize("mode", FORMS, ids=lambda mode: mode.name)
Urls = Mapping[str, str]


@pytest.fixture
def url(urls: Urls) -> str:
    return urls["mariadb"]


@contextmanager
def connected(url: str, *settings: str) -> Iterator[Any]:
    with closing(pymysql.connect(**arguments(url))) as connection:
        for setting in settings:
            ask(connection, setting)
        connection.commit()
        yield connection


def ask(connection: Any, sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def block(connection: Any, key: str, **options: Any) -> Any:
    return within(connection).operation(key, scope="operation", **options)


def run_once(connection: Any, key: str, **options: Any) -> bool:
    """One operation with one effect: whether it was replayed."""
    with block(connection, key, **options) as op:
        if not op.replayed:
            pymysql_write(connection, key)
            op.result = key
    connection.commit()
    return bool(op.replayed)


def refused(act: Callable[[], object], *words: str) -> None:
    """It raises an error of ours, in these words."""
    said = told(act)
    assert isinstance(said, str), said
    assert all(word in said for word in words), said


# Waiting


def test_the_bound_is_kept_and_the_transaction_stays_usable(url: str) -> None:
    """The statement that waited is undone, the transaction is not, and the session's own bounds are as before."""
    with connected(url) as first, connected(url, "SET innodb_lock_wait_timeout = 7") as second:
        waiting = block(first, "bound")
        assert not waiting.__enter__().replayed
        pymysql_write(second, "before the twin")
        with pytest.raises(InProgress, match="60 ms") as caught:
            block(second, "bound", wait=0.06).__enter__()
        assert caught.value.retry_after > 0
        assert ask(second, "SELECT @@innodb_lock_wait_timeout, @@max_statement_time") == ((7, 0.0),)
        second.commit()
        waiting.__exit__(None, None, None)
    assert effects(url, "before the twin") == 1


def test_a_server_that_rolls_back_with_a_wait_loses_no_writes() -> None:
    with needed("mariadb", lambda: MariadbServer("--innodb-rollback-on-timeout=ON")) as server:
        url = prepare(server.create_database("strict"))
        with connected(url) as first, connected(url) as second, ThreadPoolExecutor(1) as pool:
            waiting = block(first, "bound")
            assert not waiting.__enter__().replayed
            pymysql_write(second, "before the twin")
            with pytest.raises(InProgress):
                block(second, "bound", wait=0.06).__enter__()
            again = pool.submit(run_once, second, "bound")
            until_somebody_waits(url)
            waiting.__exit__(None, None, None)
            first.commit()
            assert told(again.result) is True
        assert effects(url, "before the twin") == 1


def test_a_message_that_another_transaction_adds_is_not_waited_for_without_a_bound(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.stores.mariadb.transaction.WAIT_MS", 60)
    with connected(url) as first, connected(url) as second:
        within(first).publish("bounded", "x", id="bounded")
        pymysql_write(second, "bounded")
        with pytest.raises(RetryTransaction, match="'bounded' is still open after 60 ms"):
            within(second).publish("bounded", "x", id="bounded")
        second.commit()
        first.commit()
    assert (ids(url, "bounded"), effects(url, "bounded")) == (["bounded"], 1)


def test_other_keys_are_not_waited_for(url: str) -> None:
    """At READ COMMITTED and at REPEATABLE READ many transactions with keys of their own are open at once."""
    with ThreadPoolExecutor(1) as pool:
        for level in ("READ COMMITTED", "REPEATABLE READ"):
            opened = [pymysql.connect(**arguments(url)) for _ in range(20)]
            for number, connection in enumerate(opened):
                ask(connection, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
                entered = pool.submit(block(connection, f"{level}.{number}", wait=0.01).__enter__)
                assert not entered.result().replayed
            for connection in opened:
                connection.close()


# Transactions that the server ends


@each_form
def test_a_deadlock_is_one_error_with_advice(mode: Any, urls: Urls, stage: Stage) -> None:
    key = f"{mode.name}.deadlock"
    victim, other = sorted(stage.play("deadlock", mode, "", key))
    assert victim.startswith("RetryTransaction: ")
    assert "1213" in victim
    assert other == "ran"
    assert effects(urls["mariadb"], key) == 1


def test_work_that_hides_a_deadlock_stores_no_result(url: str) -> None:
    """The server has rolled back what was written before: what comes after it is another transaction."""
    with connected(url) as other, connected(url) as connection, ThreadPoolExecutor(1) as pool:
        for number in (1, 2):
            mariadb_rows(url, f"INSERT INTO effects (id, name) VALUES ({-number}, 'locked')")
        change = "UPDATE effects SET name = 'locked' WHERE id = {}"
        entered = block(connection, "hidden")
        assert not entered.__enter__().replayed
        for number in range(20):  # the one that has written less is the victim
            pymysql_write(other, f"heavy {number}")
        ask(connection, change.format(-1))
        ask(other, change.format(-2))
        waits = pool.submit(ask, other, change.format(-1))
        until_somebody_waits(url)
        with pytest.raises(OperationalError, match="1213"):
            ask(connection, change.format(-2))
        waits.result()
        other.rollback()
        pymysql_write(connection, "hidden")  # goes on, as if nothing were
        with pytest.raises(Misuse, match="was committed or rolled back inside of its block"):
            entered.__exit__(None, None, None)
        connection.rollback()
        assert not run_once(connection, "hidden")
    assert effects(url, "hidden") == 1


def test_a_lock_that_does_not_come_is_a_reason_to_run_again(url: str) -> None:
    """Committed all the same, half of the work would be there. So it is not said that the work is done."""
    with connected(url) as other, connected(url, "SET innodb_lock_wait_timeout = 0") as connection:
        mariadb_rows(url, "INSERT INTO effects (id, name) VALUES (-3, 'held')")
        ask(other, "UPDATE effects SET name = 'held' WHERE id = -3")

        def work() -> None:
            with block(connection, "half") as op:
                assert not op.replayed
                pymysql_write(connection, "half")
                ask(connection, "UPDATE effects SET name = 'ours' WHERE id = -3")

        refused(work, "RetryTransaction: ", "1205", "roll back")
        connection.commit()  # what nobody should do
        with pytest.raises(OutcomeUnknown):
            block(connection, "half").__enter__()


def test_a_change_of_a_schema_ends_the_transaction(url: str) -> None:
    """The server commits before and after it: the record would be finished, whatever becomes of what follows."""
    with connected(url) as connection:
        entered = block(connection, "schema")
        assert not entered.__enter__().replayed
        ask(connection, "CREATE TABLE IF NOT EXISTS made_inside (id integer)")
        with pytest.raises(Misuse):
            entered.__exit__(None, None, None)
        connection.rollback()
        with pytest.raises(OutcomeUnknown):
            block(connection, "schema").__enter__()


def test_savepoints_of_the_work_go_on_inside(url: str) -> None:
    with connected(url) as connection:
        pymysql_write(connection, "savepoint.before")
        ask(connection, "SAVEPOINT before_it")
        with block(connection, "savepoint") as op:
            assert not op.replayed
            ask(connection, "SAVEPOINT inside")
            pymysql_write(connection, "savepoint.undone")
            ask(connection, "ROLLBACK TO SAVEPOINT inside")
            pymysql_write(connection, "savepoint")
        ask(connection, "ROLLBACK TO SAVEPOINT before_it")  # takes the finished record along
        assert not run_once(connection, "savepoint")
    found = [effects(url, name) for name in ("savepoint.before", "savepoint", "savepoint.undone")]
    assert found == [1, 1, 0]


# Snapshots


def test_a_snapshot_that_is_older_than_the_first_replays(url: str) -> None:
    """A plain read would see nothing, and the insert a row that is there: the record is read as it is committed."""
    with connected(url) as first, connected(url) as second:
        ask(second, "SELECT COUNT(*) FROM effects")
        assert not run_once(first, "unseen", fingerprint=1)
        assert told(lambda: run_once(second, "unseen", fingerprint=1)) is True
        ask(second, "SELECT COUNT(*) FROM effects")
        assert not run_once(first, "unseen, too", fingerprint=1)
        with pytest.raises(KeyReused):
            block(second, "unseen, too", fingerprint=2).__enter__()
    assert effects(url, "unseen") == 1


def test_a_snapshot_that_is_older_than_what_nobody_knows_is_told(url: str) -> None:
    with connected(url) as first, connected(url) as second:
        ask(second, "SELECT COUNT(*) FROM effects")
        assert not block(first, "unseen, unknown").__enter__().replayed
        first.commit()  # in the middle of the block
        with pytest.raises(OutcomeUnknown):
            block(second, "unseen, unknown").__enter__()


def test_a_stricter_snapshot_is_a_retry(url: str) -> None:
    """The default from MariaDB 11.6 on: the server rolls the transaction back."""
    with connected(url) as first, connected(url, "SET innodb_snapshot_isolation = ON") as second:
        ask(second, "SELECT COUNT(*) FROM effects")
        assert not run_once(first, "stricter")
        refused(block(second, "stricter").__enter__, "RetryTransaction: ", "1020")
        second.rollback()
        assert run_once(second, "stricter")


@pytest.mark.parametrize("mode", FORMS[:-1], ids=lambda mode: mode.name)
def test_twins_at_serializable(mode: Any, urls: Urls, stage: Stage) -> None:
    """There every read takes locks, so the two may have to be run again, and still one of them takes effect."""
    key = f"{mode.name}.serializable"
    assert stage.play("twins", mode, "serializable", key) == [1, 1]
    assert effects(urls["mariadb"], key) == 1


def test_a_serializable_look_is_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.stores.mariadb.transaction.LOOK_LEAST_MS", 60)
    with (
        connected(url) as first,
        connected(url, "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE") as second,
    ):
        with block(first, "looked at") as op:
            assert not op.replayed
            began = time.monotonic()
            with pytest.raises(InProgress):
                block(second, "looked at", wait=0.06).__enter__()
            assert time.monotonic() - began < 30
        first.commit()


# Sessions and schemas


@pytest.mark.parametrize("mode", ["", "ANSI,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH"])
def test_a_session_that_is_not_strict(url: str, mode: str) -> None:
    """Without strict mode the server cuts what is too long, and one key could be taken for another one."""
    settings = (f"SET sql_mode = '{mode}'", "SET unique_checks = 0", "SET NAMES latin1")
    long = str(len(mode)).rjust(250, "x")
    with connected(url, *settings) as connection:
        for number, key in enumerate((long, f"{long}-é", f"{long}-e", f"{long}-e ", f"{long}-E")):
            with block(connection, key, fingerprint=number) as op:
                assert not op.replayed
                op.result = f"{number} é"
            connection.commit()
            with block(connection, key, fingerprint=number) as op:
                assert (op.replayed, op.result) == (True, f"{number} é")
        assert within(connection).publish(f"{len(mode)}.strict", "é", id=f"{len(mode)}.strict", headers={"e": "ü"})
        assert within(connection).publish(f"{len(mode)}.strict", "é", id=f"{len(mode)}.strict", headers={"e": "ü"})
        connection.commit()
        assert ask(connection, "SELECT @@unique_checks") == ((0,),)
    assert ids(url, f"{len(mode)}.strict") == [f"{len(mode)}.strict"]


def test_what_does_not_fit_is_refused_and_not_cut(mariadb_server: Any) -> None:
    name = f"narrow_{uuid4().hex[:12]}"
    url = prepare(mariadb_server.create_database(name))
    mariadb_rows(url, "ALTER TABLE semel_records MODIFY fingerprint VARBINARY(8) NOT NULL")
    mariadb_rows(url, "ALTER TABLE semel_outbox MODIFY content_type VARCHAR(8) NOT NULL")
    with connected(url, "SET sql_mode = ''") as connection:
        for act in (block(connection, "cut").__enter__, lambda: within(connection).publish("cut", {})):
            refused(act, "DataError: (1406")
    mariadb_server.drop_database(name)


def test_ids_of_messages_are_told_apart_by_their_bytes(url: str) -> None:
    names = ["mail", "Mail", "MAIL", "mäil".encode("ascii", "replace").decode()]
    with connected(url) as connection:
        for name in names:
            within(connection).publish("apart", name, id=name, key=f"{name} ")
        connection.commit()
    assert ids(url, "apart") == names


def test_another_message_under_the_same_id_is_refused(url: str) -> None:
    """Also by a transaction whose snapshot is older than the message."""
    with connected(url) as first, connected(url) as older:
        ask(older, "SELECT COUNT(*) FROM effects")
        for connection in (first, older):
            within(connection).publish("reused", "x", id="reused", key="k")
            for changed in ({"payload": "y"}, {"key": "l"}, {"key": None}, {"headers": {"a": "b"}}):
                call: dict[str, Any] = {"payload": "x", "key": "k", "id": "reused", **changed}
                refused(lambda: within(connection).publish("reused", **call), "MessageReused: ")  # noqa: B023
            connection.commit()
    assert ids(url, "reused") == ["reused"]


def test_tables_are_looked_at_each_time(url: str) -> None:
    mariadb_rows(url, "INSERT INTO semel_schema VALUES (99, 'future', 99)")
    try:
        with connected(url) as connection:
            with pytest.raises(StoreMisconfigured, match="has version 99"):
                block(connection, "newer").__enter__()
            pymysql_write(connection, "newer")
            connection.commit()
    finally:
        mariadb_rows(url, "DELETE FROM semel_schema WHERE number = 99")
    with semel.open_store(url) as store:  # type: ignore[attr-defined]
        assert store.get(semel.Key("", "operation", "newer")) is None


def test_a_database_without_our_tables_says_how_to_make_them(mariadb_server: Any) -> None:
    name = f"empty_{uuid4().hex[:12]}"
    url = mariadb_server.create_database(name)
    assert is_mariadb(url)
    with connected(url) as connection:
        refused(block(connection, "none").__enter__, "StoreMisconfigured: ", "semel migrate")
    mariadb_server.drop_database(name)


# Costs


def test_the_happy_path_is_five_statements_and_a_replay_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    plain = PymysqlDriver.perform

    def perform(driver: PymysqlDriver, statement: Any) -> Any:
        words = statement.sql.partition(" FOR ")[2] or statement.sql
        seen.append(words.split()[0])
        return plain(driver, statement)

    monkeypatch.setattr(PymysqlDriver, "perform", perform)
    with connected(url) as connection:
        run_once(connection, "counted")
        assert seen == ["SELECT", "INSERT", "SAVEPOINT", "RELEASE", "UPDATE"]
        run_once(connection, "counted")
        assert seen[5:] == ["SELECT"]
        del seen[:]
        within(connection).publish("counted", "x")
        assert seen == ["SELECT", "INSERT"]
