"""The store on Django's own connections, both faces, against the contract, on SQLite and on PostgreSQL."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("django")
pytest.importorskip("rest_framework")

from django.db import transaction

import django_site  # noqa: F401
from django_site import databases
from semel import Key, StoreMisconfigured
from semel.store import AsyncStore, Clock, Store
from semel.stores.django import AsyncDjangoStore, DjangoStore
from semel.testing import AsyncStoreContract, StoreContract
from semel.testing.calls import claim, granted, held


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
    pass


class TestAsyncDjangoStoreOnPostgres(OnPostgres, AsyncFace):
    pass
