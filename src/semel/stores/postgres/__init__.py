"""The PostgreSQL store: one row for each key, one statement for each batch of calls, one round trip for each statement.

Options of the URL: `schema` (where the tables live; default: the search path), `migrate=auto` (create or upgrade them
on first use), `timeout_ms`, `pool_max`, `prepare=false` (for poolers that are not recognised), and everything that
libpq knows (`sslmode`, …).
"""

from __future__ import annotations

from semel.store import Clock
from semel.stores.postgres.aio import AsyncPostgresStore
from semel.stores.postgres.settings import Settings
from semel.stores.postgres.store import PostgresStore
from semel.stores.url import StoreUrl

__all__ = ["AsyncPostgresStore", "PostgresStore", "Settings", "open_async_store", "open_store"]


def open_store(url: StoreUrl, clock: Clock | None) -> PostgresStore:
    return PostgresStore(Settings.of(url), clock=clock)


def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncPostgresStore:
    return AsyncPostgresStore(Settings.of(url), clock=clock)
