"""The memory store, both faces, against the contract, and when the machine's clock jumps."""

from semel.store import AsyncStore, Clock, Store
from semel.stores.memory import AsyncMemoryStore, MemoryStore
from semel.testing import AsyncStoreContract, BlockingStore, StoreContract
from stores.clock_jumps import ClockJumps


class TestMemoryStore(StoreContract):
    shared = False

    def open(self, clock: Clock | None) -> Store:
        return MemoryStore(clock=clock)


class TestAsyncMemoryStore(AsyncStoreContract):
    shared = False

    def open(self, clock: Clock | None) -> AsyncStore:
        return AsyncMemoryStore(clock=clock)


class TestMemoryStoreWhenTheClockJumps(ClockJumps):
    shared = False

    def handle(self, clock: Clock | None) -> Store:
        return MemoryStore(clock=clock)


class TestAsyncMemoryStoreWhenTheClockJumps(ClockJumps):
    shared = False

    def handle(self, clock: Clock | None) -> Store:
        return BlockingStore(AsyncMemoryStore(clock=clock))
