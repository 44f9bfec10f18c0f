"""Opens the store that a URL names."""

from __future__ import annotations

from semel.store import Clock
from semel.stores.postgres.aio import AsyncPostgresStore
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.postgres.store import PostgresStore
from semel.stores.url import StoreUrl


def open_store(url: StoreUrl, clock: Clock | None) -> PostgresStore:
    return PostgresStore(PostgresSettings.of(url), clock=clock)


def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncPostgresStore:
    return AsyncPostgresStore(PostgresSettings.of(url), clock=clock)
