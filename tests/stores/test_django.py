"""The store on Django's own connections, both faces, against the contract, on SQLite, PostgreSQL and MariaDB."""

import gc
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

pytest.importorskip("django")
pytest.importorskip("rest_framework")

from django.db import transaction

import django_site  # noqa: F401
from django_site import databases
from semel import Key, Lease, StoreMisconfigured, StoreUnavailable, open_store
from semel.core.protocol import abandon
from semel.runtime.drive import drive
from semel.runtime.perform import performer
from semel.store import AsyncStore, Clock, Doubting, Store
from semel.stores.django.aio import AsyncDjangoStore
from semel.stores.django.store import DjangoStore
from semel.testing import AsyncStoreContract, BlockingStore, StoreContract
from semel.testing.calls import claim, granted, held
from semel.testing.proxy import PATIENCE_S, FaultProxy
from stores.clock_jumps import ClockJumps


@pytest.fixture(scope="module", autouse=True)
def little_to_look_through() -> Iterator[None]:
    """Each of these tests collects garbage at its end: not also among all that pytest has collected before."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Database:
    """One database as Django is told about it. The instance travels to other processes, which are told again."""

    database: databases.Database
    name: str

    @pytest.fixture(autouse=True)
    def named(self) -> Iterator[None]:
        self.name = databases.new_alias()
        yield
        databases.remove(self.name)
        gc.collect()  # Django keeps a connection for each thread, in a cycle that outlives the thread

    def alias(self) -> str:
        databases.add(self.name, self.database)
        return self.name


class OnSqlite(Database):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.database = databases.sqlite_at(tmp_path / "records.db")


class OnPostgres(Database):
    @pytest.fixture(autouse=True)
    def place(self, postgres_url: str) -> None:
        self.database = databases.postgres_at(postgres_url)


class OnMariadb(Database):
    @pytest.fixture(autouse=True)
    def place(self, mariadb_url: str) -> None:
        self.database = databases.mariadb_at(mariadb_url)


class SyncFace(Database, StoreContract):
    parity_examples = 10
    race_rounds = 5  # each of its threads has a connection of its own

    def open(self, clock: Clock | None) -> Store:
        return DjangoStore(self.alias(), clock=clock)


class AsyncFace(Database, AsyncStoreContract):
    parity_examples = 10
    race_rounds = 5  # each of its threads has a connection of its own

    def open(self, clock: Clock | None) -> AsyncStore:
        return AsyncDjangoStore(self.alias(), clock=clock)

    def test_a_handle_that_was_used_before_a_fork_works_on_both_sides(self, *_: object) -> None:
        pytest.skip("asgiref's thread for blocking calls does not survive a fork, outside of a request")


@contextmanager
def opened(face: str, alias: str) -> Iterator[Store]:
    with closing(DjangoStore(alias) if face == "sync" else BlockingStore(AsyncDjangoStore(alias))) as store:
        yield store


def wait_for_lock(postgres_url: str) -> None:
    """Sleep until a statement of another connection waits for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    deadline = time.monotonic() + PATIENCE_S
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        while admin.execute(waiting).fetchall() == [(0,)]:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def done_within(work: Future[bool], timeout_s: float) -> bool:
    return bool(wait([work], timeout_s).done)


class Refusing(Database):
    def test_a_transaction_of_the_caller_is_refused(self) -> None:
        store = DjangoStore(self.alias())
        store.migrate()
        key = Key("refused", "POST /", "key")
        with transaction.atomic(self.alias()), pytest.raises(StoreMisconfigured, match=r"inside transaction\.atomic"):
            claim(store, key, "owner")
        lease = granted(claim(store, key, "owner"))
        assert held(store, key).lease == lease

    def test_a_connection_without_autocommit_is_refused(self) -> None:
        store = DjangoStore(self.alias())
        store.migrate()
        transaction.set_autocommit(False, self.alias())
        with pytest.raises(StoreMisconfigured, match="AUTOCOMMIT"):
            claim(store, Key("manual", "POST /", "key"), "owner")


class TestDjangoStoreOnSqliteWhenTheClockJumps(OnSqlite, ClockJumps):
    def handle(self, clock: Clock | None) -> Store:
        store = DjangoStore(self.alias(), clock=clock)
        store.migrate()
        return store

    def test_threads_that_begin_at_once_agree(self) -> None:
        DjangoStore(self.alias()).migrate()
        stores = [DjangoStore(self.alias()) for _ in range(8)]

        def begin(number: int) -> None:
            granted(claim(stores[number], Key("t", "s", str(number)), "owner"))
            databases.close_everywhere(self.name)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(begin, range(8)))
        with closing(sqlite3.connect(str(self.database["NAME"]))) as connection:
            assert connection.execute("SELECT count(*) FROM semel_clock").fetchone() == (1,)


class TestAsyncDjangoStoreOnSqliteWhenTheClockJumps(OnSqlite, ClockJumps):
    def handle(self, clock: Clock | None) -> Store:
        DjangoStore(self.alias()).migrate()
        return BlockingStore(AsyncDjangoStore(self.alias(), clock=clock))


class TestDjangoStoreOnSqlite(Refusing, OnSqlite, SyncFace):
    def test_missing_tables_are_named(self) -> None:
        with pytest.raises(StoreMisconfigured, match=r"manage\.py migrate semel"):
            claim(DjangoStore(self.alias()), Key("t", "s", "k"), "owner")

    def test_an_unknown_alias_is_named(self) -> None:
        with pytest.raises(StoreMisconfigured, match="'elsewhere'"):
            DjangoStore("elsewhere").migrate()


class TestAsyncDjangoStoreOnSqlite(OnSqlite, AsyncFace):
    pass


class TestDjangoStoreOnPostgres(Refusing, OnPostgres, SyncFace):
    @pytest.mark.parametrize("face", ["sync", "async"])
    def test_a_claim_whose_connection_was_cut_is_given_back_once_the_server_has_carried_it_out(
        self, postgres_url: str, face: str
    ) -> None:
        """The server goes on with what it was asked. Until it has ended, a release that finds no claim says nothing."""
        DjangoStore(self.alias()).migrate()
        key = Key("doubts", "s", uuid4().hex)
        with (
            FaultProxy(postgres_url) as proxy,
            databases.added(databases.postgres_at(proxy.url)) as alias,
            opened(face, alias) as store,
            ThreadPoolExecutor(2) as threads,
        ):
            assert isinstance(store, Doubting)
            assert store.doubts(None) == frozenset(), "no connection was lost"
            databases.close_everywhere(alias)
            with psycopg.connect(postgres_url) as other:
                other.execute("LOCK TABLE semel_records IN SHARE MODE")
                claiming = threads.submit(claim, store, key, "gone")
                wait_for_lock(postgres_url)
                proxy.cut()
                assert isinstance(claiming.exception(PATIENCE_S), StoreUnavailable)
                assert store.doubts(None)
                abandoning = threads.submit(drive, abandon(Lease(key, "gone", 1, 0)), performer(store))
                assert not done_within(abandoning, 0.3), "the server may still carry the claim out"
                other.rollback()
            assert abandoning.result(PATIENCE_S)
            assert store.get(key) is None
            granted(claim(store, key, "next"))


class TestAsyncDjangoStoreOnPostgres(OnPostgres, AsyncFace):
    pass


class TestDjangoStoreOnMariadb(Refusing, OnMariadb, SyncFace):
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"isolation_level": "repeatable read"}, "REPEATABLE-READ: the store needs READ COMMITTED"),
            ({"init_command": "SET sql_mode = ''"}, "without strict mode"),
        ],
    )
    def test_a_session_that_is_set_otherwise_is_refused(self, options: dict[str, str], message: str) -> None:
        DjangoStore(self.alias()).migrate()
        with (
            databases.added({**self.database, "OPTIONS": options}) as other,
            pytest.raises(StoreMisconfigured, match=message),
        ):
            claim(DjangoStore(other), Key("set", "POST /", "key"), "owner")

    def test_its_records_are_those_of_the_store_with_a_connection_of_its_own(self, mariadb_url: str) -> None:
        store = DjangoStore(self.alias())
        store.migrate()
        key = Key("shared", "POST /", "key")
        lease = granted(claim(store, key, "owner"))
        with closing(open_store(mariadb_url)) as own:
            assert held(own, key).lease == lease
