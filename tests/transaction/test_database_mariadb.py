"""The database helpers where MariaDB is different: races, snapshots, locks, collations, and what is refused."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa
from pymysql.constants import CLIENT
from pymysql.err import DataError, IntegrityError

from semel import database
from semel.connections.mariadb import check_server
from semel.database import Stale, StreamConflict
from semel.errors import Misuse, StoreMisconfigured
from semel.transaction import RetryTransaction, within
from semel.watermark import watermark
from servers.mariadb import MariadbServer, arguments
from servers.needing import needed
from transaction.modes import ON_MARIADB, Mode, sqlalchemy_url

each_mode = pytest.mark.parametrize("mode", ON_MARIADB, ids=lambda mode: mode.name)
both_levels = pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
PLAIN = ON_MARIADB[0]
CROWD = 8
PATIENCE_S = 30.0
TABLES = (
    """CREATE TABLE payments (id bigint AUTO_INCREMENT PRIMARY KEY, intent varchar(80) UNIQUE,
    receipt varchar(80) UNIQUE, amount integer, version integer NOT NULL DEFAULT 1)""",
    "CREATE TABLE parts (name varchar(80) UNIQUE, payment bigint REFERENCES payments (id))",
    """CREATE TABLE events (aggregate_id varchar(80), sequence bigint, kind varchar(80), message varchar(80) UNIQUE,
    PRIMARY KEY (aggregate_id, sequence))""",
    "CREATE TABLE loose (intent varchar(80), aggregate_id varchar(80), sequence bigint, KEY (intent))",
)
WAITING = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"


@pytest.fixture(scope="module")
def url(mariadb_url: str) -> str:
    with closing(pymysql.connect(**arguments(mariadb_url))) as connection:
        watermark("any", connection).create()
        for sql in TABLES:
            ask(connection, sql)
    return mariadb_url


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CROWD) as made:
        yield made


def ask(connection: Any, sql: str, *given: object) -> Any:
    with connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(sql, given or None)
        return cursor.fetchall()


def outside(url: str, sql: str, *given: object) -> Any:
    with closing(pymysql.connect(**arguments(url), autocommit=True)) as connection:
        return ask(connection, sql, *given)


def rows_of(url: str, intent: str) -> int:
    [(count,)] = outside(url, "SELECT count(*) FROM payments WHERE intent = %s", intent)
    return int(count)


def until_somebody_waits(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while outside(url, WAITING) == ((0,),):
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.01)


def in_one(mode: Mode, url: str, act: Callable[[Any], Any], level: str = "") -> Any:
    """`act` in one transaction, awaited if need be."""

    async def tasks() -> Any:
        async with mode.begin(url, level) as connection:
            done = act(connection)
            return await done if inspect.isawaitable(done) else done

    if mode.is_async:
        return asyncio.run(tasks())
    with mode.begin(url, level) as connection:
        return act(connection)


def call(mode: Mode, name: str) -> Any:
    return getattr(database, f"a{name}" if mode.is_async else name)


def put(mode: Mode, connection: Any, intent: str, **values: object) -> Any:
    return call(mode, "insert_or_get")(connection, "payments", {"intent": intent, **values}, on="intent")


def putting(mode: Mode, intent: str, connection: Any) -> Any:
    return put(mode, connection, intent)


# Races


@both_levels
def test_one_of_many_threads_creates(level: str, url: str, pool: ThreadPoolExecutor) -> None:
    barrier, intent = threading.Barrier(CROWD), f"threads {level}"

    def one(number: int) -> tuple[int, bool]:
        with PLAIN.begin(url, level) as connection:
            ask(connection, "SELECT * FROM payments")  # a snapshot from before
            barrier.wait(PATIENCE_S)
            row, created = put(PLAIN, connection, intent, amount=number)  # nobody deadlocks: see insert_or_find
            return row["id"], created

    told = list(pool.map(one, range(CROWD)))
    assert rows_of(url, intent) == 1
    assert len({number for number, _ in told}) == 1
    assert sum(created for _, created in told) == 1


@both_levels
@pytest.mark.parametrize("mode", [mode for mode in ON_MARIADB if mode.is_async], ids=lambda mode: mode.name)
def test_one_of_many_tasks_creates(mode: Mode, level: str, url: str) -> None:
    intent = f"{mode.name} {level}"

    async def one(number: int) -> bool:
        while True:
            try:
                async with mode.begin(url, level) as connection:
                    _, created = await put(mode, connection, intent, amount=number)
                    return bool(created)
            except RetryTransaction:
                await asyncio.sleep(0)

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*map(one, range(CROWD)))

    assert sum(asyncio.run(all_of_them())) == 1
    assert rows_of(url, intent) == 1


@both_levels
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_loser_waits_and_then_gets_or_inserts(level: str, end: str, url: str, pool: ThreadPoolExecutor) -> None:
    intent, seen = f"{end} {level}", threading.Event()

    def loser() -> Any:
        with PLAIN.begin(url, level) as connection:
            ask(connection, "SELECT * FROM payments")  # a snapshot in which there is nothing
            seen.set()
            return put(PLAIN, connection, intent, amount=2)

    with closing(pymysql.connect(**arguments(url))) as winner:
        assert put(PLAIN, winner, intent, amount=1)[1]
        later: Future[Any] = pool.submit(loser)
        assert seen.wait(PATIENCE_S)
        until_somebody_waits(url)
        getattr(winner, end)()
        row, created = later.result(PATIENCE_S)
    assert (row["amount"], created) == ((1, False) if end == "commit" else (2, True))
    assert rows_of(url, intent) == 1


@both_levels
def test_updates_of_many_are_all_counted(level: str, url: str, pool: ThreadPoolExecutor) -> None:
    where = {"intent": f"counted {level}"}
    in_one(PLAIN, url, lambda made: put(PLAIN, made, where["intent"], amount=0))

    def add(_: int) -> None:
        while True:
            try:
                with PLAIN.begin(url, level) as connection:
                    done = database.update(
                        connection, "payments", where=where, change=lambda row: {"amount": row["amount"] + 1}
                    )
                    assert not isinstance(done, Stale)
                    return
            except RetryTransaction:
                continue

    list(pool.map(add, range(16)))
    assert outside(url, "SELECT amount, version FROM payments WHERE intent = %s", where["intent"]) == ((16, 17),)


@each_mode
def test_an_old_snapshot_does_not_hide_what_is_there_now(mode: Mode, url: str) -> None:
    """REPEATABLE READ: the row was changed after this transaction had read it for the first time."""
    where = {"intent": f"{mode.name}.old"}
    in_one(mode, url, lambda made: put(mode, made, where["intent"], amount=1))

    def change(row: Any) -> Any:
        if row["version"] == 1:
            outside(url, "UPDATE payments SET amount = 5, version = 2 WHERE intent = %s", where["intent"])
        return {"amount": row["amount"] + 1}

    def update(connection: Any) -> Any:
        return call(mode, "update")(connection, "payments", where=where, change=change, tries_max=2)

    assert in_one(mode, url, update, "repeatable read")["amount"] == 6
    assert outside(url, "SELECT amount, version FROM payments WHERE intent = %s", where["intent"]) == ((6, 3),)


# Locks


@each_mode
def test_a_lock_that_is_held_for_too_long_is_a_retry(mode: Mode, url: str) -> None:
    where = {"intent": f"{mode.name}.held"}
    in_one(mode, url, lambda made: put(mode, made, where["intent"], amount=1))
    options: Any = {"where": where, "version": 1, "values": {"amount": 2}}

    async def tasks() -> None:
        async with mode.begin(url, "") as connection:
            await execute(connection, "SET innodb_lock_wait_timeout = 0")
            await database.aupdate_if(connection, "payments", **options)

    def hasty(connection: Any) -> Any:
        asyncio.run(execute(connection, "SET innodb_lock_wait_timeout = 0"))
        return database.update_if(connection, "payments", **options)

    with closing(pymysql.connect(**arguments(url))) as holder:
        ask(holder, "SELECT * FROM payments WHERE intent = %s FOR UPDATE", where["intent"])
        with pytest.raises(RetryTransaction, match=r"1205.*roll back"):
            asyncio.run(tasks()) if mode.is_async else in_one(mode, url, hasty)
    assert outside(url, "SELECT amount, version FROM payments WHERE intent = %s", where["intent"]) == ((1, 1),)


async def execute(connection: Any, sql: str) -> None:
    """In the way of whatever driver it is of."""
    if hasattr(connection, "execute"):
        done = connection.execute(sa.text(sql))
    elif isinstance(connection, pymysql.Connection):
        done = ask(connection, sql)
    else:
        async with connection.cursor() as cursor:
            done = await cursor.execute(sql)
    if inspect.isawaitable(done):
        await done


@pytest.mark.parametrize("mode", [mode for mode in ON_MARIADB if not mode.is_async], ids=lambda mode: mode.name)
def test_who_wait_for_each_other_are_told_to_run_again(mode: Mode, url: str, pool: ThreadPoolExecutor) -> None:
    names = [f"{mode.name}.{number}" for number in (1, 2)]
    in_one(mode, url, lambda made: [put(mode, made, name, amount=0) for name in names])
    barrier = threading.Barrier(2)

    def both(first: str, second: str) -> str:
        try:
            with mode.begin(url, "") as connection:
                for name in (first, second):
                    done = database.update_if(
                        connection, "payments", where={"intent": name}, version=1, values={"amount": 1}
                    )
                    assert not isinstance(done, Stale)
                    if name == first:
                        barrier.wait(PATIENCE_S)
            return "done"
        except RetryTransaction as error:
            return str(error)

    again, done = sorted(pool.map(both, names, reversed(names)))
    assert "1213" in again
    assert done == "done"


def test_a_stricter_snapshot_is_a_retry(url: str) -> None:
    """The default from MariaDB 11.6 on: a transaction may not write what was changed since it began."""
    with closing(pymysql.connect(**arguments(url))) as connection:
        ask(connection, "SET innodb_snapshot_isolation = ON")
        ask(connection, "SELECT * FROM payments")
        outside(url, "INSERT INTO payments (intent) VALUES ('since')")
        with pytest.raises(RetryTransaction, match="1020"):
            put(PLAIN, connection, "since")


# Keys


@each_mode
def test_names_that_the_collation_makes_one_are_one(mode: Mode, url: str) -> None:
    row, _ = in_one(mode, url, lambda made: put(mode, made, f"{mode.name}.abc", amount=1))
    assert in_one(mode, url, lambda made: put(mode, made, f"{mode.name}.ABC ", amount=2)) == (row, False)


@each_mode
def test_another_unique_key_is_not_taken_for_this_one(mode: Mode, url: str) -> None:
    """It is the driver's own error, and the transaction goes on."""
    receipt = mode.name
    in_one(mode, url, lambda made: put(mode, made, f"{mode.name}.a", receipt=receipt))
    refused = (IntegrityError, sa.exc.IntegrityError)

    async def tasks(connection: Any) -> Any:
        with pytest.raises(refused, match="1062"):
            await put(mode, connection, f"{mode.name}.b", receipt=receipt)
        return await put(mode, connection, f"{mode.name}.c")

    def sync(connection: Any) -> Any:
        with pytest.raises(refused, match="1062"):
            put(mode, connection, f"{mode.name}.b", receipt=receipt)
        return put(mode, connection, f"{mode.name}.c")

    assert in_one(mode, url, tasks if mode.is_async else sync)[1]
    assert [rows_of(url, f"{mode.name}.{name}") for name in "abc"] == [1, 0, 1]


def test_another_unique_key_of_events_is_not_a_conflict_of_the_stream(url: str) -> None:
    with PLAIN.begin(url, "") as connection:
        database.append(connection, "events", "s", [{"message": "m"}], expected=0)
        assert database.append(connection, "events", "s", [{"message": "m"}], expected=0) == 1
        with pytest.raises(IntegrityError, match="1062"):
            database.append(connection, "events", "t", [{"message": "m"}], expected=0)


def test_no_other_mistake_is_hidden(url: str) -> None:
    with PLAIN.begin(url, "") as connection:
        with pytest.raises(DataError, match="too long"):
            put(PLAIN, connection, "x" * 81)
        with pytest.raises(IntegrityError, match="foreign key"):
            database.insert_or_get(connection, "parts", {"name": "a", "payment": -1}, on="name")


def test_without_a_unique_key_nothing_is_promised(url: str) -> None:
    engine = sa.create_engine(sqlalchemy_url(url, "pymysql"), poolclass=sa.NullPool)
    table = sa.Table("loose", sa.MetaData(), autoload_with=engine)
    with pytest.raises(StoreMisconfigured, match=r"loose has no unique key on \(intent\)"), engine.begin() as made:
        database.insert_or_get(made, table, {"intent": "a"}, on="intent")
    with pytest.raises(StoreMisconfigured, match="loose has no unique key"), PLAIN.begin(url, "") as connection:
        database.append(connection, "loose", "a", [{}], expected=0)
    assert outside(url, "SELECT count(*) FROM loose") == ((0,),)


def test_a_number_is_not_several_texts(url: str) -> None:
    with PLAIN.begin(url, "") as connection:
        for intent in ("5", "5th"):
            put(PLAIN, connection, intent)
        with pytest.raises(TypeError, match="several rows of payments"):
            database.insert_or_get(connection, "payments", {"intent": 5}, on="intent")


@pytest.mark.parametrize("flag", [0, CLIENT.FOUND_ROWS])
def test_both_ways_to_count_rows_will_do(flag: int, url: str) -> None:
    with closing(pymysql.connect(**arguments(url), client_flag=flag)) as connection:
        intent = f"counted by {flag}"
        assert [put(PLAIN, connection, intent, amount=1)[1] for _ in range(2)] == [True, False]
        for version in (1, 2):  # the same value again, and the condition changes with it
            changed = database.update_if(
                connection, "payments", where={"intent": intent, "amount": version}, version=version,
                values={"amount": version + 1},
            )  # fmt: skip
            assert not isinstance(changed, Stale)
            assert (changed["amount"], changed["version"]) == (version + 1, version + 1)
        same = database.update_if(connection, "payments", where={"intent": intent}, version=3, values={"amount": 3})
        assert not isinstance(same, Stale)
        assert same["version"] == 4


@pytest.mark.parametrize("mode", ON_MARIADB[3:], ids=lambda mode: mode.name)
@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
def test_tables_of_sqlalchemy(scheme: str, mode: Mode, url: str) -> None:
    place = url.replace("mysql:", f"{scheme}:")
    engine = sa.create_engine(sqlalchemy_url(url, "pymysql"), poolclass=sa.NullPool)
    metadata, intent = sa.MetaData(), f"{scheme} {mode.name}"
    payments = sa.Table("payments", metadata, autoload_with=engine)
    events = sa.Table("events", metadata, autoload_with=engine)

    def twice(name: str, *given: object, **options: object) -> Any:
        return [in_one(mode, place, lambda made: call(mode, name)(made, *given, **options)) for _ in range(2)]

    (row, created), again = twice("insert_or_get", payments, {"intent": intent, "amount": 1}, on="intent")
    assert (created, again) == (True, (row, False))
    changed, stale = twice("update_if", payments, where={"intent": intent}, version=1, values={"amount": 2})
    assert (changed, stale) == ({**row, "amount": 2, "version": 2}, Stale(changed))
    assert twice("append", events, intent, [{"kind": "made"}, {"kind": "paid"}], expected=0) == [2, 2]
    with pytest.raises(StreamConflict):
        twice("append", events, intent, [{"kind": "lost"}], expected=1)
    assert rows_of(url, intent) == 1
    assert outside(url, "SELECT count(*) FROM events WHERE aggregate_id = %s", intent) == ((2,),)


def test_tables_of_sqlalchemy_are_read_with_locks(url: str) -> None:
    engine = sa.create_engine(sqlalchemy_url(url, "pymysql"), poolclass=sa.NullPool)
    payments = sa.Table("payments", sa.MetaData(), autoload_with=engine)
    where = {"intent": "made since"}
    with engine.begin() as connection:
        assert connection.execute(payments.select().filter_by(**where)).all() == []
        outside(url, "INSERT INTO payments (intent, version) VALUES ('made since', 2)")
        row, created = database.insert_or_get(connection, payments, where, on="intent")
        assert not created
        assert database.update_if(connection, payments, where=where, version=1, values={"amount": 2}) == Stale(row)


# Watermarks


def test_watermarks_see_what_ran_ahead_since_their_snapshot(url: str) -> None:
    with PLAIN.begin(url, "") as connection:
        watermark("p", connection, mode="sparse").advance("s", 1)
    with PLAIN.begin(url, "repeatable read") as late:
        ask(late, "SELECT * FROM semel_watermarks_ahead")
        with PLAIN.begin(url, "") as connection:
            assert watermark("p", connection, mode="sparse").advance("s", 3)
        assert watermark("p", late, mode="sparse").advance("s", 2)
    with PLAIN.begin(url, "") as connection:
        assert watermark("p", connection).position("s") == 3
        assert not watermark("p", connection, mode="sparse").advance("s", 3)


def test_watermarks_tell_names_apart(url: str) -> None:
    with PLAIN.begin(url, "") as connection:
        for name in ("a", "A", "a ", "ä"):
            assert watermark(name, connection).advance(name, 1)
        with pytest.raises(ValueError, match="source must have at most 255"):
            watermark("a", connection).advance("x" * 256, 1)


def test_an_event_is_applied_once_by_many(url: str, pool: ThreadPoolExecutor) -> None:
    def apply(number: int) -> bool:
        while True:
            try:
                with PLAIN.begin(url, "read committed") as connection:
                    return watermark("crowd", connection, mode="sparse").advance("s", number % 4 + 1)
            except RetryTransaction:
                continue

    assert sum(pool.map(apply, range(16))) == 4


def test_creating_tables_does_not_commit_what_is_open(url: str) -> None:
    with closing(pymysql.connect(**arguments(url))) as connection:
        put(PLAIN, connection, "open")
        with pytest.raises(Misuse, match="CREATE_MARIADB"):
            watermark("any", connection).create()
    assert rows_of(url, "open") == 0


# Refusals


def test_autocommit_is_refused(url: str) -> None:
    with closing(pymysql.connect(**arguments(url), autocommit=True)) as connection:
        with pytest.raises(StoreMisconfigured, match=r"connection\.begin"):
            put(PLAIN, connection, "alone")
        connection.begin()
        assert put(PLAIN, connection, "alone")[1]
    for mode in ON_MARIADB[3:]:
        with pytest.raises(StoreMisconfigured, match="AUTOCOMMIT"):
            in_one(mode, url, partial(putting, mode, "alone"), "autocommit")
    assert rows_of(url, "alone") == 0


def test_mysql_is_refused_by_name() -> None:
    with needed("mariadb", lambda: MariadbServer("--version=5.7.10")) as server:  # what it tells its clients
        place = server.create_database("named")
        outside(place, TABLES[0])
        for mode in (PLAIN, *ON_MARIADB[3:]):
            with pytest.raises(StoreMisconfigured, match=r"MySQL does not have.*5\.7\.10"):
                in_one(mode, place, partial(putting, mode, "a"))
            if not mode.is_async:
                with pytest.raises(StoreMisconfigured, match=r"MySQL does not have.*5\.7\.10"):
                    in_one(mode, place, lambda made: within(made).operation("a", scope="o").__enter__())
        assert rows_of(place, "a") == 0


def test_old_versions_are_refused_by_number() -> None:
    check_server("5.5.5-10.6.1-MariaDB-log")
    check_server("11.4.2-MariaDB")
    with pytest.raises(StoreMisconfigured, match=r"10\.6 or later.*10\.5\.9"):
        check_server("5.5.5-10.5.9-MariaDB")
