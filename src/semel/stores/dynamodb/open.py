"""Opens the store that a URL names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.store import Clock
from semel.stores.dynamodb.settings import DynamodbSettings
from semel.stores.dynamodb.store import DynamodbStore
from semel.stores.url import StoreUrl

if TYPE_CHECKING:
    from semel.stores.dynamodb.aio import AsyncDynamodbStore


def open_store(url: StoreUrl, clock: Clock | None) -> DynamodbStore:
    return DynamodbStore(DynamodbSettings.of(url), clock=clock)


def open_async_store(url: StoreUrl, clock: Clock | None) -> AsyncDynamodbStore:
    """Imports aiobotocore, which takes half a second: too long for a function that starts and is sync."""
    from semel.stores.dynamodb.aio import AsyncDynamodbStore

    return AsyncDynamodbStore(DynamodbSettings.of(url), clock=clock)
