"""`within(…).publish(…)` in every mode: a message is there if and only if the rows of its transaction are."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

import semel
from semel.connections.psycopg import PsycopgDriver
from semel.errors import MessageReused, Misuse, StoreError, StoreMisconfigured, Unstorable
from semel.flow import AsyncFlow, Flow, tx
from semel.stores.postgres import transaction as postgres_engine
from semel.transaction import AsyncBound, Bound, RetryTransaction, run, within
from transaction.modes import DJANGO, MODES, SNAPSHOTS, Mode, effects, path_of, sqlalchemy_url
from transaction.outbox_rows import ids, letters
from transaction.stage import Stage
from transaction.test_transaction_schema import execute

Urls = Mapping[str, str]
ALL = [*MODES, *DJANGO]
CASES = [(mode, level) for mode in ALL for level in mode.levels]
each_mode = pytest.mark.parametrize("mode", ALL, ids=lambda mode: mode.name)
each_case = pytest.mark.parametrize(
    ("mode", "level"), CASES, ids=lambda part: part if isinstance(part, str) else part.name
)
REUSED = "MessageReused: the id "


def is_snapshot(mode: Mode, level: str) -> bool:
    return mode.database == "postgres" and level in SNAPSHOTS


@each_mode
def test_a_message_is_there_when_its_transaction_commits(mode: Mode, urls: Urls, stage: Stage) -> None:
    url, topic = urls[mode.database], f"{mode.name}.commits"
    calls = [
        {"topic": topic, "payload": "grüße", "key": "order-1", "headers": {"b": "2", "a": "é"}},
        {"topic": topic, "payload": {"b": [1, None], "a": "x"}, "id": f"{topic}.mine"},
        {"topic": topic, "payload": "<a/>", "content_type": "application/xml"},
    ]
    made = stage.play("publish", mode, "", topic, calls=calls)
    first, second, third = found = letters(url, topic)
    assert made == [letter.id for letter in found]
    assert made[1] == f"{topic}.mine"
    assert {uuid.UUID(made[0]).version, uuid.UUID(made[2]).version} == {4}
    assert first[1:6] == (topic, "order-1", "text/plain; charset=utf-8", '{"a":"é","b":"2"}', "grüße".encode())
    assert second[1:6] == (topic, None, "application/json", "{}", b'{"a":"x","b":[1,null]}')
    assert third[1:6] == (topic, None, "application/xml", "{}", b"<a/>")
    assert all(0 < each.created_ms == each.available_ms and each.state == each.attempt == 0 for each in found)
    assert effects(url, topic) == 1


@each_mode
def test_no_message_is_there_when_its_transaction_rolls_back(mode: Mode, urls: Urls, stage: Stage) -> None:
    url, topic = urls[mode.database], f"{mode.name}.rolls back"
    calls = [{"topic": topic, "payload": "x"}]
    assert stage.play("publish", mode, "", topic, calls=calls, end="raise") == "ArithmeticError: on purpose"
    assert (ids(url, topic), effects(url, topic)) == ([], 0)


@each_mode
def test_the_same_message_is_added_once_and_another_one_refused(mode: Mode, urls: Urls, stage: Stage) -> None:
    """In the same transaction and in a later one; the transaction can go on after the refusal."""
    url, topic = urls[mode.database], f"{mode.name}.same"
    message: dict[str, Any] = {"topic": topic, "payload": "x", "id": topic, "key": "k", "headers": {"a": "1", "b": "2"}}
    others: list[dict[str, Any]] = [
        {"payload": "y"},
        {"topic": f"{topic}!"},
        {"key": "other"},
        {"key": None},
        {"headers": {"a": "1"}},
        {"content_type": "text/html"},
    ]
    again = {**message, "headers": {"b": "2", "a": "1"}}
    for number in (1, 2):
        calls = [message, again, *({**message, **other} for other in others), {"topic": topic, "payload": number}]
        same, twice, *refused, fresh = stage.play("publish", mode, "", topic, calls=calls)
        assert same == twice == topic
        assert [each[: len(REUSED)] for each in refused] == [REUSED] * len(others)
        assert uuid.UUID(fresh).version == 4
    assert [letter.payload for letter in letters(url, topic)] == [b"x", b"1", b"2"]
    assert effects(url, topic) == 2


@each_case
def test_two_transactions_add_the_same_message_at_once(mode: Mode, level: str, urls: Urls, stage: Stage) -> None:
    url, topic = urls[mode.database], f"{mode.name}.{level}.at-once".replace(" ", "-")
    first, second = stage.play("add_twice", mode, level, topic, payloads=["x", "x"])
    assert first == "committed"
    if is_snapshot(mode, level):
        assert second.startswith("RetryTransaction: ")
    else:
        assert second == "committed"
    assert ids(url, topic) == [topic]
    assert effects(url, topic) == 1 + (second == "committed")


@each_mode
def test_two_transactions_add_different_messages_with_one_id(mode: Mode, urls: Urls, stage: Stage) -> None:
    url, topic = urls[mode.database], f"{mode.name}.different"
    first, second = stage.play("add_twice", mode, "", topic, payloads=["x", "y"])
    assert (first, second[: len(REUSED)]) == ("committed", REUSED)
    assert [letter.payload for letter in letters(url, topic)] == [b"x"]


@each_case
def test_the_second_adds_it_when_the_first_rolls_back(mode: Mode, level: str, urls: Urls, stage: Stage) -> None:
    url, topic = urls[mode.database], f"{mode.name}.{level}.second-adds".replace(" ", "-")
    told = stage.play("add_twice", mode, level, topic, payloads=["x", "y"], end="raise")
    assert told == ["ArithmeticError: on purpose", "committed"]
    assert [letter.payload for letter in letters(url, topic)] == [b"y"]


# Ids


@each_mode
def test_a_repeat_of_an_operation_adds_the_same_messages(mode: Mode, urls: Urls, stage: Stage) -> None:
    """The first run is given up, `run` repeats it; later calls are replayed."""
    url, topic = urls[mode.database], f"{mode.name}.operation"
    calls = [
        {"topic": topic, "payload": 1},
        {"topic": topic, "payload": 2, "id": f"{topic}!"},
        {"topic": topic, "payload": 3},
    ]
    made = stage.play("operate", mode, "", topic, calls=calls, fail=True)
    assert stage.play("operate", mode, "", topic, calls=calls) == made == ids(url, topic)
    assert len(set(made)) == 3
    assert [uuid.UUID(each).version for each in (made[0], made[2])] == [5, 5]
    assert effects(url, topic) == 1


@pytest.mark.parametrize("database", ["postgres", "sqlite"])
def test_ids_come_from_the_key_of_the_operation_and_a_number(database: str, urls: Urls) -> None:
    mode = next(mode for mode in MODES if mode.database == database)
    seen: list[list[str]] = []
    for key in ("one", "one", "other"):  # rolled back: nothing of them is there
        with mode.begin(urls[database], "") as connection:
            bound = within(connection)
            with bound.operation(f"ids.{key}", scope="operation") as op:
                assert not op.replayed
                seen.append([bound.publish("ids", 1), bound.publish("ids", 1)])
                with bound.receive(f"ids.{key}", handler="h") as message:
                    assert not message.duplicate
                    seen[-1].append(bound.publish("ids", 1))
                seen[-1].append(bound.publish("ids", 1))
            connection.rollback()
    assert seen[0] == seen[1]
    assert len({*seen[0], *seen[2]}) == 8


def test_a_leased_operation_that_is_taken_over_adds_the_same_message(urls: Urls) -> None:
    """Its record and the message are in different databases: the second attempt finds what the first committed."""
    policy = semel.Policy(guarantee="at-least-once", lease=0.001)
    with semel.open_store("memory://") as store:  # type: ignore[attr-defined]
        for attempt in (1, 2):
            block = semel.operation("k", scope="taken over", store=store, policy=policy)
            with suppress(semel.OutcomeUnknown), block as op:
                assert (op.replayed, op.attempt) == (False, attempt)
                with psycopg.connect(urls["postgres"]) as connection:
                    within(connection).publish("taken over", "x")
                raise semel.OutcomeUnknown("on purpose")
    assert len(ids(urls["postgres"], "taken over")) == 1


def test_other_messages_in_a_repeat_are_refused(urls: Urls) -> None:
    lite = sqlite3.connect(path_of(urls["sqlite"]))
    for payload, error in (("x", None), ("y", MessageReused)):
        store = semel.open_store("memory://")
        with semel.operation("k", scope="not the same", store=store) as op, lite:
            assert not op.replayed
            if error is None:
                within(lite).publish("not the same", payload)
            else:
                with pytest.raises(error, match="the same order"):
                    within(lite).publish("not the same", payload)
    lite.close()


def test_a_number_is_not_used_again_after_a_savepoint(urls: Urls) -> None:
    """Else the second message could be taken for the first one, and be lost."""
    with psycopg.connect(urls["postgres"]) as connection, within(connection).operation("savepoint", scope="o") as op:
        assert not op.replayed
        made = []
        for name in ("lost", "kept"):
            with connection.transaction(force_rollback=name == "lost"):
                made.append(within(connection).publish("savepoint", name))
    assert made[0] != made[1]
    assert ids(urls["postgres"], "savepoint") == made[1:]


def test_nothing_is_published_in_a_replayed_block(urls: Urls) -> None:
    with sqlite3.connect(path_of(urls["sqlite"])) as lite:
        for replayed in (False, True):
            with within(lite).operation("replayed publish", scope="operation") as op:
                assert op.replayed == replayed
                if replayed:
                    with pytest.raises(Misuse, match=r"op\.replayed"):
                        within(lite).publish("replayed", "x")
                    within(lite).publish("replayed", "a note of its own", id="note")
            with within(lite).receive("replayed publish", handler="h") as message:
                assert message.duplicate == replayed
                if replayed:
                    with pytest.raises(Misuse, match=r"message\.duplicate"):
                        within(lite).publish("replayed", "x")
    assert ids(urls["sqlite"], "replayed") == ["note"]
    lite.close()


@pytest.mark.parametrize("database", ["postgres", "sqlite"])
def test_a_tx_step_of_a_flow_publishes_from_its_own_key(database: str, urls: Urls) -> None:
    """A step that is given up runs again with the same ids, and each step counts for itself."""
    url = urls[database]
    mode = next(mode for mode in MODES if mode.database == database)
    tries: list[list[str]] = []

    def step(op: Any, connection: Any) -> None:
        made = [within(connection).publish("flow", 1), within(connection).publish("flow", 2)]
        tries.append(made)
        if len(tries) == 1:
            raise RetryTransaction("on purpose")

    with closing(semel.open_store(url)) as store:
        steps: Any = [tx("one", step), tx("two", step)]
        flow = Flow("publishes", steps, store=store, input=str, returns=object, transaction=mode.opener(url))
        flow.run("k", "x")
        flow.run("k", "x")
    assert tries[0] == tries[1]
    assert len(tries) == 3
    assert ids(url, "flow") == [*tries[1], *tries[2]]
    assert len({*tries[1], *tries[2]}) == 4


def test_an_async_flow_publishes(urls: Urls) -> None:
    mode = next(mode for mode in MODES if mode.name == "asyncpg")

    async def step(op: Any, connection: Any) -> None:
        await within(connection).publish("async flow", 1)

    async def main() -> None:
        store = semel.open_async_store(urls["postgres"])
        steps: Any = [tx("one", step)]
        begin = mode.opener(urls["postgres"])
        flow = AsyncFlow("apublishes", steps, store=store, input=str, returns=object, transaction=begin)
        await flow.run("k", "x")
        await store.close()

    asyncio.run(main())
    assert [uuid.UUID(each).version for each in ids(urls["postgres"], "async flow")] == [5]


# What is refused


def test_what_no_broker_could_carry_is_refused_by_name(urls: Urls) -> None:
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"topic": ""}, ValueError, "topic must not be empty"),
        ({"topic": "a\nb"}, ValueError, "topic must be printable"),
        ({"payload": b"x" * (1024 * 1024 + 1)}, ValueError, "payload has 1048577 bytes, the limit is 1048576"),
        ({"payload": "\ud800"}, ValueError, "payload must be valid Unicode"),
        ({"payload": {"a": object()}}, Unstorable, "payload cannot be written as JSON"),
        ({"id": "a b"}, ValueError, "id must be 1 to 128 visible"),
        ({"id": "x" * 129}, ValueError, "the limit is 128"),
        ({"key": "x" * 256}, ValueError, "key has 256 bytes"),
        ({"headers": {"a b": "c"}}, ValueError, "not a header name"),
        ({"headers": [("a", "b")]}, TypeError, "headers must be a mapping"),
        ({"content_type": ""}, ValueError, "content_type must not be empty"),
    ]
    with sqlite3.connect(path_of(urls["sqlite"])) as lite, within(lite).operation("refused", scope="o") as op:
        assert not op.replayed
        for call, error, said in refused:
            with pytest.raises(error, match=said):
                within(lite).publish(**{"topic": "refused", "payload": "x", **call})
        made = within(lite).publish("refused", memoryview(b"x"))
        assert made == semel.current_operation().derive("semel.outbox/1")  # type: ignore[union-attr]  # none was counted
    assert [letter[3:6] for letter in letters(urls["sqlite"], "refused")] == [("application/octet-stream", "{}", b"x")]
    lite.close()


def test_a_connection_in_autocommit_mode_is_refused(urls: Urls) -> None:
    lite = sqlite3.connect(path_of(urls["sqlite"]), isolation_level=None)
    with closing(lite), pytest.raises(StoreMisconfigured, match="BEGIN IMMEDIATE"):
        within(lite).publish("autocommit", "x")
    connection = psycopg.connect(urls["postgres"], autocommit=True)
    with closing(connection), pytest.raises(StoreMisconfigured, match="autocommit"):
        within(connection).publish("autocommit", "x")
    for url, driver in ((urls["postgres"], "psycopg"), (urls["sqlite"], "pysqlite")):
        engine = sa.create_engine(sqlalchemy_url(url, driver), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with Session(engine) as session, pytest.raises(StoreMisconfigured, match="AUTOCOMMIT"):
            within(session).publish("autocommit", "x")

    async def tasks() -> None:
        connection = await asyncpg.connect(urls["postgres"])
        with pytest.raises(StoreMisconfigured, match=r"connection\.transaction"):
            await within(connection).publish("autocommit", "x")
        await connection.close()
        async with aiosqlite.connect(path_of(urls["sqlite"]), isolation_level=None) as light:
            with pytest.raises(StoreMisconfigured, match="BEGIN IMMEDIATE"):
                await within(light).publish("autocommit", "x")

    asyncio.run(tasks())
    assert [ids(url, "autocommit") for url in urls.values()] == [[]] * len(urls)


def test_a_database_without_the_second_migration_says_what_to_run(postgres_url: str) -> None:
    with semel.open_store(f"{postgres_url}?schema=old") as store:  # type: ignore[attr-defined]
        store.migrate()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("DROP TABLE old.semel_outbox; DROP TABLE old.semel_attempts")
        connection.execute("DELETE FROM old.semel_schema WHERE number = 2")
    with psycopg.connect(postgres_url) as connection, pytest.raises(StoreMisconfigured, match="semel migrate"):
        within(connection, schema="old").publish("t", "x")
    with closing(sqlite3.connect(":memory:")) as lite:
        lite.execute("CREATE TABLE semel_schema (number INTEGER PRIMARY KEY, title TEXT, readable_from INTEGER)")
        lite.execute("INSERT INTO semel_schema VALUES (1, 'records', 1)")
        with pytest.raises(StoreMisconfigured, match="has version 1, this semel needs 2; run `semel migrate"):
            within(lite).publish("t", "x")


@pytest.mark.parametrize("database", ["postgres", "sqlite", "mariadb"])
def test_a_newer_schema_gets_no_message(database: str, urls: Urls) -> None:
    url = urls[database]
    mode = next(mode for mode in MODES if mode.database == database)
    execute(url, "INSERT INTO semel_schema VALUES (99, 'of the future', 99)")
    try:
        with mode.begin(url, "") as connection:
            with pytest.raises(StoreMisconfigured, match="has version 99"):
                within(connection).publish("newer", "x")
            mode.write(connection, "newer")
    finally:
        execute(url, "DELETE FROM semel_schema WHERE number = 99")
    assert (ids(url, "newer"), effects(url, "newer")) == ([], 1)


# PostgreSQL


def test_publishing_is_one_statement_on_postgres(urls: Urls) -> None:
    seen: list[str] = []
    plain = PsycopgDriver.perform

    def perform(driver: PsycopgDriver, statement: Any) -> Any:
        seen.append(statement.sql.split()[0])
        return plain(driver, statement)

    with pytest.MonkeyPatch.context() as patch, psycopg.connect(urls["postgres"]) as connection:
        patch.setattr(PsycopgDriver, "perform", perform)
        for id in (None, "one-statement", "one-statement"):
            within(connection).publish("one statement", "x", id=id)
        assert seen == ["WITH"] * 3
        with within(connection).operation("one statement", scope="o") as op:
            assert not op.replayed
            within(connection).publish("one statement", "x")
        assert seen[3:] == ["WITH"] * 3


def test_a_transaction_notifies_once_and_only_if_it_commits(urls: Urls) -> None:
    with (
        psycopg.connect(urls["postgres"], autocommit=True) as listener,
        psycopg.connect(urls["postgres"]) as connection,
    ):
        listener.execute("LISTEN semel_outbox")
        within(connection).publish("notifies", "x")
        connection.rollback()
        within(connection).publish("notifies", "x", id="notifies")
        within(connection).publish("notifies", "x", id="notifies")
        within(connection).publish("notifies", "y")
        connection.commit()
        within(connection).publish("notifies", "x", id="notifies")  # there already: nothing to tell
        connection.commit()
        listener.execute("NOTIFY semel_outbox, 'the last one'")
        told = [each.payload for each in listener.notifies(timeout=30, stop_after=2)]
    assert told == ["", "the last one"]


def test_waiting_for_the_other_transaction_has_a_bound(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is as usable as before, and so is its own lock timeout."""
    monkeypatch.setattr(postgres_engine, "WAIT_MS", 20)
    with psycopg.connect(urls["postgres"]) as other, psycopg.connect(urls["postgres"]) as connection:
        within(other).publish("bound", "x", id="bound")
        connection.execute("INSERT INTO effects (name) VALUES ('bound')")
        connection.execute("SET LOCAL lock_timeout = '3s'")
        with pytest.raises(StoreError) as caught:
            within(connection).publish("bound", "x", id="bound")
        assert connection.info.transaction_status == TransactionStatus.INTRANS
        assert isinstance(caught.value, RetryTransaction)
        assert "'bound' is still open after 20 ms" in str(caught.value)
        assert connection.execute("SHOW lock_timeout").fetchone() == ("3s",)
        other.rollback()
        within(connection).publish("bound", "x", id="bound")
        connection.commit()
    assert (ids(urls["postgres"], "bound"), effects(urls["postgres"], "bound")) == (["bound"], 1)


def test_ids_that_share_a_lock_do_not_wait_for_each_other(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_engine, "GIVEN_LOCKS", 1)
    with psycopg.connect(urls["postgres"]) as other, psycopg.connect(urls["postgres"]) as connection:
        within(other).publish("shared lock", "x", id="shared-lock-1")
        connection.execute("SET LOCAL lock_timeout = '7s'")
        within(connection).publish("shared lock", "x", id="shared-lock-2")
        assert connection.execute("SHOW lock_timeout").fetchone() == ("7s",)
    assert len(ids(urls["postgres"], "shared lock")) == 2


def test_a_transaction_of_many_messages_takes_few_locks(urls: Urls) -> None:
    """A lock for each message would fill the table of locks, which all sessions of the server share."""
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    with psycopg.connect(urls["postgres"]) as connection:
        for number in range(600):
            within(connection).publish("many", number)
        assert connection.execute(held).fetchone() == (0,)
        with within(connection).operation("many", scope="o") as op:
            assert not op.replayed
            for number in range(600):
                within(connection).publish("many", number)
        assert connection.execute(held).fetchone() == (1,)
        for number in range(600):
            within(connection).publish("many", number, id=f"many.{number}")
        assert connection.execute(held.replace("count(*)", "count(*) <= 513")).fetchone() == (True,)


def test_publishing_in_a_pipeline(urls: Urls) -> None:
    with psycopg.connect(urls["postgres"]) as connection, connection.pipeline():
        made = within(connection).publish("pipeline", "x")
    assert ids(urls["postgres"], "pipeline") == [made]


def test_a_user_without_rights_is_told_what_is_needed(urls: Urls) -> None:
    url, clerk = urls["postgres"], f"clerk_{uuid.uuid4().hex[:8]}"
    execute(url, f"CREATE ROLE {clerk}")
    execute(url, f"GRANT SELECT ON semel_schema TO {clerk}")
    try:
        with psycopg.connect(url) as connection:
            connection.execute(f"SET ROLE {clerk}".encode())
            with pytest.raises(StoreMisconfigured, match="INSERT on semel_outbox"):
                within(connection).publish("t", "x")
        execute(url, f"GRANT SELECT, INSERT ON semel_outbox TO {clerk}")
        with psycopg.connect(url) as connection:
            connection.execute(f"SET ROLE {clerk}".encode())
            within(connection).publish("rights", "x", id="rights")
    finally:
        execute(url, f"DROP OWNED BY {clerk}; DROP ROLE {clerk}")
    assert ids(url, "rights") == ["rights"]


def test_the_kind_of_the_connection_decides_the_kind_of_the_binding(urls: Urls) -> None:
    async def kinds() -> list[type]:
        connection = await asyncpg.connect(urls["postgres"])
        found = [type(within(connection))]
        await connection.close()
        return found

    lite = sqlite3.connect(path_of(urls["sqlite"]))
    assert [type(within(lite)), *asyncio.run(kinds())] == [Bound, AsyncBound]
    lite.close()


def test_a_final_error_adds_no_message(urls: Urls) -> None:
    mode = next(mode for mode in MODES if mode.name == "sqlite3")

    def work(connection: Any) -> None:
        within(connection).publish("final", "x")
        raise LookupError("on purpose")

    for _ in range(2):
        with pytest.raises(LookupError):
            run(mode.opener(urls["sqlite"]), "final", work, scope="o", final_errors=[LookupError])
    assert ids(urls["sqlite"], "final") == []


def test_type_checkers_tell_connections_of_threads_from_those_of_tasks() -> None:
    """mypy checks this function: `publish` gives text to threads, and an awaitable to tasks."""

    async def play(
        threads: tuple[psycopg.Connection[Any], sqlite3.Connection, sa.Connection, Session],
        tasks: tuple[psycopg.AsyncConnection[Any], aiosqlite.Connection, AsyncConnection, AsyncSession],
    ) -> list[str]:
        lite, session = within(threads[1]), within(threads[3])
        found = [within(threads[0]).publish("t", 1), lite.publish("t", 1), within(threads[2]).publish("t", 1)]
        found += [
            session.publish("t", 1),
            await within(tasks[0]).publish("t", 1),
            await within(tasks[1]).publish("t", 1),
        ]
        return [*found, await within(tasks[2]).publish("t", 1), await within(tasks[3]).publish("t", 1)]

    assert asyncio.iscoroutinefunction(play)
