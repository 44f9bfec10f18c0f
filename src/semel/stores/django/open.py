"""Opens the store that a URL names."""

from __future__ import annotations

from semel.store import Clock
from semel.stores.django.aio import AsyncDjangoStore
from semel.stores.django.store import DjangoStore
from semel.stores.url import StoreUrl


def open_store(url: StoreUrl, clock: Clock | None) -> DjangoStore:
    return DjangoStore(url.parts.netloc or "default", clock=clock)


def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncDjangoStore:
    return AsyncDjangoStore(url.parts.netloc or "default", clock=clock)
