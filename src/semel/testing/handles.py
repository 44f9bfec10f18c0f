"""What every test is given: a handle on the store, the clock that it goes by, and a key that no other test uses."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar
from uuid import uuid4

import pytest

from semel.core.records import Key
from semel.store import Clock, Migratable, Store
from semel.testing.clock import ManualClock


class Handles(ABC):
    """The foundation of both contracts."""

    shared: ClassVar[bool] = True
    """Whether a second handle, here or in another process, sees the same records."""
    parity_examples: ClassVar[int] = int(os.environ.get("SEMEL_PARITY_EXAMPLES", "100"))
    """How many random histories are compared with the model."""
    parity_steps: ClassVar[int] = 40
    race_rounds: ClassVar[int] = 20

    @abstractmethod
    def handle(self, clock: Clock | None) -> Store:
        """A new handle whose calls block, also where the async store is under test."""

    def spoil(self, key: Key) -> Callable[[], object] | None:
        """Make the stored record of `key` one that this version cannot read; returns what removes it again.

        Without it (None) the tests of what happens beside such a record are skipped.
        """
        return None

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[Store]:
        store = self.handle(clock)
        if isinstance(store, Migratable):
            store.migrate()
        yield store
        store.close()

    @pytest.fixture
    def another(self, store: Store, clock: ManualClock) -> Iterator[Store]:
        """A second handle on the same records."""
        if not self.shared:
            pytest.skip("the store lives in one object")
        another = self.handle(clock)
        yield another
        another.close()

    @pytest.fixture
    def key(self) -> Key:
        """Tests are kept apart by tenants, so they may share one database."""
        return Key(f"tenant-{uuid4().hex}", "POST /payments", "key")
