"""Opens the store that a URL names."""

from __future__ import annotations

from semel.store import Clock
from semel.stores.mariadb.aio import AsyncMariadbStore
from semel.stores.mariadb.settings import MariadbSettings
from semel.stores.mariadb.store import MariadbStore
from semel.stores.url import StoreUrl


def open_store(url: StoreUrl, clock: Clock | None) -> MariadbStore:
    return MariadbStore(MariadbSettings.of(url), clock=clock)


def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncMariadbStore:
    return AsyncMariadbStore(MariadbSettings.of(url), clock=clock)
