"""The memory store, both faces, against the contract."""

from semel.clock import wall_ms
from semel.store import AsyncStore, Clock, Store
from semel.stores.memory import AsyncMemoryStore, MemoryStore
from semel.testing import AsyncStoreContract, StoreContract


class TestMemoryStore(StoreContract):
    shared = False

    def open(self, clock: Clock | None) -> Store:
        return MemoryStore(clock=clock or wall_ms)


class TestAsyncMemoryStore(AsyncStoreContract):
    shared = False

    def open(self, clock: Clock | None) -> AsyncStore:
        return AsyncMemoryStore(clock=clock or wall_ms)
