"""The PostgreSQL store, both faces, straight and through PgBouncer in transaction mode, against the contract."""

from collections.abc import Callable

import psycopg
import pytest

from semel import Key, open_async_store, open_store
from semel.store import AsyncStore, Clock, Store
from semel.testing import AsyncStoreContract, StoreContract

pytestmark = pytest.mark.timeout(400)  # the parity histories write through to the disk some ten thousand times


class Spoiling:
    url: str

    def spoil(self, key: Key) -> Callable[[], object]:
        def change(sql: str) -> None:
            with psycopg.connect(self.url, prepare_threshold=None) as connection:
                changed = connection.execute(f"{sql} WHERE tenant = %s AND name = %s".encode(), (key.tenant, key.name))
                assert changed.rowcount == 1

        change("UPDATE semel_records SET state = 7")
        return lambda: change("DELETE FROM semel_records")


class Straight(Spoiling):
    url: str

    @pytest.fixture(autouse=True)
    def place(self, postgres_url: str) -> None:
        self.url = postgres_url


class Pooled(Spoiling):
    """Whatever a session keeps is gone, or somebody else's, in the next transaction."""

    url: str

    @pytest.fixture(autouse=True)
    def place(self, pgbouncer_url: str) -> None:
        self.url = pgbouncer_url


class TestPostgresStore(Straight, StoreContract):
    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url, clock=clock)


class TestAsyncPostgresStore(Straight, AsyncStoreContract):
    def open(self, clock: Clock | None) -> AsyncStore:
        return open_async_store(self.url, clock=clock)


class TestPostgresStoreThroughPgBouncer(Pooled, StoreContract):
    parity_examples = 20

    def open(self, clock: Clock | None) -> Store:
        return open_store(self.url, clock=clock)


class TestAsyncPostgresStoreThroughPgBouncer(Pooled, AsyncStoreContract):
    parity_examples = 20

    def open(self, clock: Clock | None) -> AsyncStore:
        return open_async_store(self.url, clock=clock)
