"""The SQLite store, both faces, against the contract, and when the machine's clock jumps."""

from pathlib import Path

import pytest

from semel.store import AsyncStore, Clock, Store
from semel.stores.sqlite import AsyncSqliteStore, SqliteStore
from semel.testing import AsyncStoreContract, BlockingStore, StoreContract
from stores.clock_jumps import ClockJumps


class File:
    """A new file for each test."""

    path: str

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "records.db")


class TestSqliteStore(File, StoreContract):
    def open(self, clock: Clock | None) -> Store:
        return SqliteStore(self.path, clock=clock)


class TestAsyncSqliteStore(File, AsyncStoreContract):
    def open(self, clock: Clock | None) -> AsyncStore:
        return AsyncSqliteStore(self.path, clock=clock)


class TestSqliteStoreOfOneDigest(File, StoreContract):
    """The digest only finds: keys that share one are told apart all the same."""

    shared = False  # another process would not have this digest

    @pytest.fixture(autouse=True)
    def one_digest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("scripts", "quick", "inspection"):
            monkeypatch.setattr(f"semel.stores.sqlite.{module}.number_of", lambda key: 7)
        monkeypatch.setattr("semel.stores.sqlite.inspection.numbers_of", lambda tenant: (7, 7))

    def open(self, clock: Clock | None) -> Store:
        return SqliteStore(self.path, clock=clock)


class TestSqliteStoreWhenTheClockJumps(File, ClockJumps):
    def handle(self, clock: Clock | None) -> Store:
        return SqliteStore(self.path, clock=clock)


class TestAsyncSqliteStoreWhenTheClockJumps(File, ClockJumps):
    def handle(self, clock: Clock | None) -> Store:
        return BlockingStore(AsyncSqliteStore(self.path, clock=clock))
