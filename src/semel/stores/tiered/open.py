"""Opens the store that a URL names: `tiered:?front=…&back=…`, each a percent-encoded URL."""

from __future__ import annotations

from dataclasses import asdict

from semel.store import AsyncFronting, Clock, Fronting
from semel.stores.open import open_async_store as open_async
from semel.stores.open import open_store as open_sync
from semel.stores.tiered.aio import AsyncTieredStore
from semel.stores.tiered.settings import TieredSettings, check_front, take_url
from semel.stores.tiered.store import TieredStore
from semel.stores.url import StoreUrl


def open_store(url: StoreUrl, clock: Clock | None) -> TieredStore:
    front, back = take_url(url, "front"), take_url(url, "back")
    settings = TieredSettings.of(url, back)
    opened = open_sync(front)
    check_front(opened)
    assert isinstance(opened, Fronting)
    return TieredStore(opened, open_sync(back, clock=clock), clock=clock, **asdict(settings))


def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncTieredStore:
    front, back = take_url(url, "front"), take_url(url, "back")
    settings = TieredSettings.of(url, back)
    opened = open_async(front)
    check_front(opened)
    assert isinstance(opened, AsyncFronting)
    return AsyncTieredStore(opened, open_async(back, clock=clock), clock=clock, **asdict(settings))
