"""PostgreSQL: deadlocks, serialization failures, read-only in the middle of work, no connections left."""

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import psycopg
import pytest

from fire.cases import ANSWER, FACES, RETENTION_MS, claim, granted, migrated, opened, persist
from semel import Acquired, Key, StoreUnavailable
from servers.postgres import PostgresServer, database_of

TRIES_MAX = 5
FAILING = """
CREATE SEQUENCE failures;
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('failures') <= {times} THEN RAISE EXCEPTION 'on purpose' USING ERRCODE = '{code}'; END IF;
    RETURN coalesce(new, old);
END $$;
CREATE TRIGGER fail BEFORE INSERT OR UPDATE OR DELETE ON semel_records FOR EACH ROW EXECUTE FUNCTION fail();
"""


def new_key() -> Key:
    return Key("fire", "s", uuid.uuid4().hex)


@contextmanager
def rolled_back(url: str, code: str, times: int) -> Iterator[None]:
    """The server rolls back the next changes with an error code, as it does for the sake of others."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(FAILING.format(code=code, times=times).encode())
        try:
            yield
        finally:
            admin.execute("DROP TRIGGER fail ON semel_records; DROP FUNCTION fail; DROP SEQUENCE failures")


@pytest.mark.parametrize("code", ["40P01", "40001"], ids=["deadlock", "serialization"])
@pytest.mark.parametrize("face", FACES)
def test_a_change_that_was_rolled_back_for_others_is_tried_again(postgres_url: str, face: str, code: str) -> None:
    with opened(face, migrated(postgres_url)) as one:
        key = new_key()
        with rolled_back(postgres_url, code, TRIES_MAX - 1):
            lease = granted(claim(one.store, key, "a"))
        with rolled_back(postgres_url, code, TRIES_MAX - 1):
            assert one.store.complete(lease, ANSWER, retention_ms=RETENTION_MS)
        record = one.store.get(key)
        assert record is not None
        assert (record.owner, record.attempt, record.result) == ("a", 1, ANSWER)


@pytest.mark.parametrize("face", FACES)
def test_a_change_that_is_rolled_back_every_time_is_a_failure(postgres_url: str, face: str) -> None:
    with opened(face, migrated(postgres_url)) as one:
        key = new_key()
        with rolled_back(postgres_url, "40001", 1_000), pytest.raises(StoreUnavailable, match="on purpose"):
            claim(one.store, key, "a")
        assert one.store.get(key) is None
        assert isinstance(claim(one.store, key, "b"), Acquired)


def test_a_real_deadlock_with_somebodys_transaction(postgres_url: str) -> None:
    """Whomever the server picks as its victim, both completions are stored."""
    first, second, third = keys = [Key("deadlock", "s", name) for name in "abc"]
    with (
        opened("async", migrated(postgres_url)) as one,
        psycopg.connect(postgres_url) as other,
        psycopg.connect(postgres_url) as blocker,
        psycopg.connect(postgres_url, autocommit=True) as admin,
        ThreadPoolExecutor(3) as threads,
    ):
        before = deadlocks(admin)
        leases = [granted(claim(one.store, key, "a")) for key in keys]
        completed = []
        lock(blocker, third)
        for lease in reversed(leases):  # the last one waits for the blocker, so the others become one batch
            completed.append(threads.submit(one.store.complete, lease, ANSWER, retention_ms=RETENTION_MS))
            if lease.key == third:
                wait_until_blocked(admin, blocker)
        lock(other, second)
        blocker.rollback()
        wait_until_blocked(admin, other)
        with suppress(psycopg.errors.DeadlockDetected):
            lock(other, first)
        other.rollback()
        assert all(each.result() for each in completed)
        assert all((record := one.store.get(key)) is not None and record.result == ANSWER for key in keys)
        wait_for(lambda: deadlocks(admin) > before)


def lock(connection: psycopg.Connection[tuple[object, ...]], key: Key) -> None:
    connection.execute("SELECT FROM semel_records WHERE tenant = %s AND name = %s FOR UPDATE", [key.tenant, key.name])


def wait_until_blocked(
    admin: psycopg.Connection[tuple[object, ...]], by: psycopg.Connection[tuple[object, ...]]
) -> None:
    blocked = "SELECT FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    wait_for(lambda: admin.execute(blocked, [by.info.backend_pid]).fetchone() is not None)


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def deadlocks(admin: psycopg.Connection[tuple[object, ...]]) -> int:
    row = admin.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return int(str(row[0]))


def test_racing_claims_where_everything_is_serializable(postgres_url: str, pgbouncer_url: str) -> None:
    """Behind a pooler the isolation is the database's: racing claims are refused by the server (40001)."""
    migrated(postgres_url)
    name = database_of(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable'.encode())
        try:
            with opened("sync", pgbouncer_url) as one, ThreadPoolExecutor(8) as threads:
                for number in range(20):
                    key = Key("serializable", "s", str(number))
                    found = list(
                        threads.map(lambda owner: persist(lambda: claim(one.store, key, owner)), "abcdefgh")  # noqa: B023
                    )
                    assert sum(isinstance(each, Acquired) for each in found) == 1
        finally:
            admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_isolation'.encode())


def test_a_server_that_becomes_read_only_and_back(private_postgres: PostgresServer) -> None:
    url = migrated(private_postgres.url)
    with opened("sync", url) as threads, opened("async", url) as tasks:
        for name, one in (("sync", threads), ("async", tasks)):
            key = Key("read-only", "s", name)
            lease = granted(claim(one.store, key, "a"))
            switch_read_only(url, "on")
            with pytest.raises(StoreUnavailable, match="name the primary"):
                one.store.complete(lease, ANSWER, retention_ms=RETENTION_MS)
            with pytest.raises(StoreUnavailable, match="name the primary"):
                claim(one.store, new_key(), "a")
            record = one.store.get(key)
            assert record is not None
            assert record.in_progress()
            switch_read_only(url, "off")
            assert one.store.complete(lease, ANSWER, retention_ms=RETENTION_MS)


def switch_read_only(url: str, value: str) -> None:
    """For all sessions, and wait until they have heard of it."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
        admin.execute("SELECT pg_reload_conf()")
    wait_for(lambda: shown(url) == value)


def shown(url: str) -> object:
    with psycopg.connect(url, autocommit=True) as fresh:
        row = fresh.execute("SHOW default_transaction_read_only").fetchone()
    return None if row is None else row[0]


def test_a_server_with_no_connections_left(private_postgres: PostgresServer) -> None:
    url = migrated(private_postgres.url)
    with opened("sync", url) as threads, opened("async", url) as tasks:
        with ExitStack() as others:
            try:
                while True:
                    others.enter_context(psycopg.connect(url))
            except psycopg.OperationalError:
                pass
            for one in (threads, tasks):
                with pytest.raises(StoreUnavailable, match="clients"):
                    claim(one.store, new_key(), "a")
        for one in (threads, tasks):
            assert isinstance(persist(lambda one=one: claim(one.store, new_key(), "a")), Acquired)  # type: ignore[misc]
