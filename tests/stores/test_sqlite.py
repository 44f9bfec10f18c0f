"""The SQLite store, both faces, against the contract."""

from pathlib import Path

import pytest

from semel.clock import wall_ms
from semel.store import AsyncStore, Clock, Store
from semel.stores.sqlite import AsyncSqliteStore, SqliteStore
from semel.testing import AsyncStoreContract, StoreContract


class File:
    """A new file for each test."""

    path: str

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "records.db")


class TestSqliteStore(File, StoreContract):
    def open(self, clock: Clock | None) -> Store:
        return SqliteStore(self.path, clock=clock or wall_ms)


class TestAsyncSqliteStore(File, AsyncStoreContract):
    def open(self, clock: Clock | None) -> AsyncStore:
        return AsyncSqliteStore(self.path, clock=clock or wall_ms)
