"""The PostgreSQL store when the server, a connection or the pool fails: an answer in bounded time, then work again."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from semel import Acquired, Key, Occupied, Result, open_async_store, open_store
from semel.core.records import Claimed, Lease
from semel.errors import StoreMisconfigured, StoreUnavailable
from semel.store import Store
from semel.stores.postgres.aio import AsyncPostgresStore
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.postgres.store import PostgresStore
from semel.stores.url import StoreUrl
from semel.testing import BlockingStore
from servers.needing import needed
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres, PostgresServer

KEY = Key("tenant", "POST /payments", "key")
ANSWER = Result("text", b"paid")
FACES = ("sync", "async")


@contextmanager
def opened(face: str, url: str, **options: object) -> Iterator[Store]:
    url += "?migrate=auto" + "".join(f"&{name}={value}" for name, value in options.items())
    store = open_store(url) if face == "sync" else BlockingStore(open_async_store(url))
    yield store
    store.close()


def claim(store: Store, key: Key = KEY, owner: str = "a") -> Claimed:
    return store.claim(key, "1.same", owner=owner, lease_ms=60_000, retention_ms=3_600_000, takeover=False)


def granted(store: Store, key: Key = KEY, owner: str = "a") -> Lease:
    claimed = claim(store, key, owner)
    assert isinstance(claimed, Acquired)
    return claimed.lease


@contextmanager
def row_locked(url: str, key: Key) -> Iterator[None]:
    """Somebody else has the row, so whoever wants to change it waits."""
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM semel_records WHERE tenant = %s AND name = %s FOR UPDATE", [key.tenant, key.name])
        yield


def waiting_backends(connection: "psycopg.Connection[tuple[int]]") -> list[int]:
    rows = connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return [pid for (pid,) in rows]


@pytest.mark.parametrize("face", FACES)
def test_a_connection_that_is_killed_during_a_statement(postgres_url: str, face: str) -> None:
    key = Key("killed", "s", face)
    with opened(face, postgres_url) as store, psycopg.connect(postgres_url, autocommit=True) as admin:
        lease = granted(store, key)
        with ThreadPoolExecutor(1) as threads, row_locked(postgres_url, key):
            completed = threads.submit(store.complete, lease, ANSWER, retention_ms=1_000)
            while not (pids := waiting_backends(admin)):
                time.sleep(0.005)
            for pid in pids:
                admin.execute("SELECT pg_terminate_backend(%s)", [pid])
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
                completed.result()
        assert store.complete(lease, ANSWER, retention_ms=60_000)
        assert store.complete(lease, Result("text", b"again"), retention_ms=60_000)
        record = store.get(key)
        assert record is not None
        assert record.result == ANSWER


def test_a_killed_server_comes_back_with_all_that_it_acknowledged(private_postgres: PostgresServer) -> None:
    with opened("sync", private_postgres.url) as sync, opened("async", private_postgres.url) as asynchronous:
        for store, name in ((sync, "sync"), (asynchronous, "async")):
            lease = granted(store, Key("t", "s", name))
            assert store.complete(lease, ANSWER, retention_ms=3_600_000)
        private_postgres.kill()
        for store in (sync, asynchronous):
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                claim(store, Key("t", "s", "while it is away"))
            assert time.monotonic() - started < 2  # refused at once, not after the time for an answer
        private_postgres.restart()
        for store, name in ((sync, "sync"), (asynchronous, "async")):
            claimed = claim(store, Key("t", "s", name), "b")
            assert isinstance(claimed, Occupied)
            assert claimed.record.result == ANSWER


def test_after_a_restart_one_call_at_most_meets_an_old_connection(private_postgres: PostgresServer) -> None:
    with opened("sync", private_postgres.url) as store, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: claim(store, Key("t", "s", f"{number}")), range(40)))
        private_postgres.restart()
        failed = 0
        for number in range(40):
            try:
                claim(store, Key("t", "s", f"{number}"))
            except StoreUnavailable:
                failed += 1
        assert failed <= 1


def test_a_server_that_does_not_answer(private_postgres: PostgresServer) -> None:
    with (
        opened("sync", private_postgres.url, timeout_ms=200) as sync,
        opened("async", private_postgres.url, timeout_ms=200) as asynchronous,
    ):
        leases = [(store, granted(store, Key("t", "s", name))) for store, name in ((sync, "a"), (asynchronous, "b"))]
        private_postgres.pause()
        for store, lease in leases:
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match=r"no answer within 0\.2 s"):
                store.complete(lease, ANSWER, retention_ms=1_000)
            assert time.monotonic() - started < 10
        private_postgres.resume()
        for store, lease in leases:
            assert store.complete(lease, ANSWER, retention_ms=3_600_000)


def test_all_connections_in_use(postgres_url: str) -> None:
    store = PostgresStore(PostgresSettings.of(StoreUrl.parse(f"{postgres_url}?migrate=auto&timeout_ms=100&pool_max=2")))
    claim(store, Key("exhausted", "s", "sync"))
    connections = store._connections.get()
    with connections._borrowed(), connections._borrowed(), pytest.raises(StoreUnavailable, match="raise pool_max"):
        store.get(KEY)
    assert store.get(Key("exhausted", "s", "sync")) is not None
    store.close()


def test_all_connections_of_a_loop_in_use(postgres_url: str) -> None:
    async def use() -> None:
        settings = PostgresSettings.of(StoreUrl.parse(f"{postgres_url}?migrate=auto&timeout_ms=100&pool_max=2"))
        async with AsyncPostgresStore(settings) as store:
            await store.get(KEY)
            connections = store._connections.get()
            async with connections._borrowed(), connections._borrowed():
                with pytest.raises(StoreUnavailable, match="raise pool_max"):
                    await store.get(KEY)
            await store.get(KEY)

    asyncio.run(use())


@pytest.mark.parametrize("face", FACES)
def test_a_database_that_only_reads(postgres_url: str, face: str) -> None:
    with opened(face, postgres_url) as store:
        granted(store, Key("read-only", "s", face))
    read_only = f"{postgres_url}?options=-c%20default_transaction_read_only%3Don"
    store = open_store(read_only) if face == "sync" else BlockingStore(open_async_store(read_only))
    with pytest.raises(StoreUnavailable, match="name the primary"):
        claim(store, Key("read-only", "s", f"{face} 2"))
    store.close()


@pytest.mark.parametrize("face", FACES)
def test_nobody_there(face: str) -> None:
    with opened(face, "postgresql://127.0.0.1:1/nothing") as store, pytest.raises(StoreUnavailable, match="refused"):
        claim(store)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_pooler_that_changes_connections_within_a_transaction(postgres_server: Postgres, face: str) -> None:
    """The words are PgBouncer's; what to do about it is ours."""
    with (
        needed("pgbouncer", lambda: PgBouncer(postgres_server, "statement")) as bouncer,
        opened(face, bouncer.url) as store,
        pytest.raises(StoreMisconfigured, match="set pool_mode = transaction"),
    ):
        store.get(KEY)


def test_a_place_that_is_named_by_options_alone(private_postgres: PostgresServer) -> None:
    """libpq's form for a socket has no host before the path."""
    url = f"postgresql:///postgres?host={private_postgres.folder}&port={private_postgres.port}&user=postgres"
    with open_store(f"{url}&migrate=auto") as store:  # type: ignore[attr-defined]
        granted(store, KEY)
        assert store.get(KEY) is not None
