"""Opens the store that a URL names."""

from __future__ import annotations

from semel.store import Clock
from semel.stores.sqlite.aio import AsyncSqliteStore
from semel.stores.sqlite.settings import SqliteSettings
from semel.stores.sqlite.store import SqliteStore
from semel.stores.url import StoreUrl


def open_store(url: StoreUrl, clock: Clock | None) -> SqliteStore:
    return SqliteStore(SqliteSettings.of(url), clock=clock)


def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncSqliteStore:
    return AsyncSqliteStore(SqliteSettings.of(url), clock=clock)
