"""The PostgreSQL store, both faces, straight and through PgBouncer in transaction mode, against the contract."""

import pytest

from semel import open_async_store, open_store
from semel.store import AsyncStore, Clock, Store
from semel.testing import AsyncStoreContract, StoreContract

pytestmark = pytest.mark.timeout(400)  # the parity histories write through to the disk some ten thousand times


class Straight:
    url: str

    @pytest.fixture(autouse=True)
    def place(self, postgres_url: str) -> None:
        self.url = postgres_url


class Pooled:
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
