"""Migratable: numbered, forward-only, safe to run twice and by several at once."""

from __future__ import annotations

import pytest

from semel.core.records import Key
from semel.store import Migratable, Store
from semel.testing.calls import claim, granted, held
from semel.testing.clock import ManualClock
from semel.testing.handles import Handles
from semel.testing.races import at_once


class Migrations(Handles):
    def test_migrations_are_numbered_in_order(self, store: Store) -> None:
        migrations = require_migratable(store).migrations()
        numbers = [migration.number for migration in migrations]
        assert numbers == sorted(set(numbers))
        assert numbers[0] >= 1
        assert all(migration.title and migration.readable_from <= migration.number for migration in migrations)

    def test_migrating_again_changes_nothing(self, store: Store, key: Key) -> None:
        lease = granted(claim(store, key, "a"))
        assert list(require_migratable(store).migrate()) == []
        assert held(store, key).lease == lease

    def test_of_several_who_migrate_at_once_one_applies_each(self, clock: ManualClock, key: Key) -> None:
        """Where `open` gives each test a place of its own, this is its first migration."""
        handles = [self.handle(clock) for _ in range(4 if self.shared else 1)]
        applied = at_once([require_migratable(store).migrate for store in handles])
        numbers = [number for each in applied for number in each]
        assert len(numbers) == len(set(numbers)), f"applied twice: {applied}"
        assert all(granted(claim(store, key, "a")).attempt == 1 for store in handles)
        for store in handles:
            store.close()


def require_migratable(store: Store) -> Migratable:
    if not isinstance(store, Migratable):
        pytest.skip("the store needs no migration")
    return store
