"""Fronts of several servers: a cluster, and what sentinels watch."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from semel import Acquired, Key, Occupied, Result, open_async_store
from semel.store import AsyncRemovable
from semel.stores.tiered.aio import AsyncTieredStore
from stores.tiered_cases import copy_at_once, counted_answers, tiered_url

TERMS: dict[str, Any] = {"lease_ms": 30_000, "retention_ms": 3_600_000, "takeover": False}
KEYS = [Key("shop", "POST /payments", f"order-{number}") for number in range(40)]


@pytest.mark.parametrize("servers", ["cluster_url", "sentinel_url"])
def test_copies_are_on_all_of_its_servers(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: str
) -> None:
    copy_at_once(monkeypatch)
    front = request.getfixturevalue(servers)

    async def finish(store: AsyncTieredStore, key: Key) -> None:
        claimed = await store.claim(key, "f", owner="owner", **TERMS)
        assert isinstance(claimed, Acquired)
        assert await store.complete(claimed.lease, Result("raw", key.name.encode()), retention_ms=3_600_000)

    async def replay(store: AsyncTieredStore, key: Key) -> None:
        claimed = await store.claim(key, "f", owner="another", **TERMS)
        assert isinstance(claimed, Occupied)
        assert claimed.record.result == Result("raw", key.name.encode())

    async def run() -> None:
        url = tiered_url(front, f"sqlite:///{tmp_path}/records.db", front_timeout_ms=30_000)
        store = open_async_store(url)
        assert isinstance(store, AsyncTieredStore)
        async with store:
            await asyncio.gather(*(finish(store, key) for key in KEYS))
            await asyncio.gather(*(replay(store, key) for key in KEYS))
            with counted_answers() as answers:
                await asyncio.gather(*(replay(store, key) for key in KEYS))
            assert answers == {"succeeded": len(KEYS)}
            assert isinstance(store, AsyncRemovable)
            for key in KEYS[:3]:
                seen = await store.get(key)
                assert seen is not None
                assert await store.remove(seen)
                assert isinstance(await store.claim(key, "f", owner="another", **TERMS), Acquired)

    asyncio.run(run())
