"""Copies in the background, calls that go out together, and what a tiered store is to the rest of semel."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from semel import Acquired, Key, Lease, Occupied, Result, open_async_store, open_store
from semel.errors import StoreUnavailable
from semel.runtime.background import QUEUE_MAX
from semel.store import AsyncMigratable, Inspectable
from semel.stores.tiered.aio import AsyncCopier, AsyncTieredStore
from semel.stores.tiered.store import Copier, TieredStore
from semel.testing import Fault, FaultProxy
from semel.testing.proxy import ProxyExchange
from semel.transaction import within
from stores.tiered_cases import copy_at_once, counted_answers, tiered_url
from waiting import until

RESULT = Result("raw", b"\x00\xffanswer")
TERMS: dict[str, Any] = {"lease_ms": 30_000, "retention_ms": 3_600_000, "takeover": False}


def key(number: int) -> Key:
    return Key("shop", "POST /payments", f"order-{number}")


@pytest.fixture
def clean(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        yield client


@pytest.fixture
def back(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/records.db"


def finished(store: TieredStore, number: int) -> Lease:
    claimed = store.claim(key(number), "f", owner="owner", **TERMS)
    assert isinstance(claimed, Acquired)
    assert store.complete(claimed.lease, RESULT, retention_ms=3_600_000)
    return claimed.lease


def sync_store(front: str, back: str, **options: object) -> TieredStore:
    store = open_store(tiered_url(front, back, front_timeout_ms=30_000, **options))
    assert isinstance(store, TieredStore)
    return store


def async_store(front: str, back: str, **options: object) -> AsyncTieredStore:
    store = open_async_store(tiered_url(front, back, front_timeout_ms=30_000, **options))
    assert isinstance(store, AsyncTieredStore)
    return store


def test_copies_of_threads_are_made_behind_their_calls(redis_url: str, back: str, clean: Any) -> None:
    with sync_store(redis_url, back) as store:
        finished(store, 0)
        store.claim(key(0), "f", owner="another", **TERMS)
        for number in range(1, 20):
            finished(store, number)
            for _ in range(2):
                store.claim(key(0), "f", owner="another", **TERMS)
        until(lambda: clean.dbsize() == 20)
        with counted_answers() as answers:
            for number in range(20):
                assert isinstance(store.claim(key(number), "f", owner="another", **TERMS), Occupied)
        assert answers == {"succeeded": 20}


def test_a_store_that_is_closed_copies_nothing_more() -> None:
    begun, go_on, copied = threading.Event(), threading.Event(), []

    def copy(key: Key) -> None:
        begun.set()
        go_on.wait(10)
        copied.append(key)

    copier = Copier(copy)
    copier.add(key(1))
    copier.add(key(2))
    assert begun.wait(10)
    closing = threading.Thread(target=copier.close)
    closing.start()
    assert closing.is_alive(), "it waits for the copy at hand"
    go_on.set()
    closing.join(10)
    assert copied[:1] == [key(1)]
    copied.clear()
    copier.add(key(3))
    until(lambda: not copier._queue._running)
    assert copied == []


def test_a_copy_that_fails_stops_no_other() -> None:
    copied: list[Key] = []

    def copy(key: Key) -> None:
        copied.append(key)
        raise StoreUnavailable("the database is away")

    copier = Copier(copy)
    for number in range(3):
        copier.add(key(number))
    until(lambda: len(copied) == 3)

    async def run() -> None:
        async def copy_here(key: Key) -> None:
            copy(key)

        here = AsyncCopier(copy_here)
        for number in range(3):
            here.add(key(number))
        while here._waiting:
            await asyncio.sleep(0)
        await here.close()

    asyncio.run(run())
    assert len(copied) == 6


def test_copies_that_wait_are_bounded() -> None:
    async def run() -> int:
        async def copy(key: Key) -> None:
            raise AssertionError("it has not begun yet")

        copier = AsyncCopier(copy)
        for number in range(QUEUE_MAX + 5):
            copier.add(key(number))
        waiting = len(copier._waiting)
        await copier.close()
        return waiting

    assert asyncio.run(run()) == QUEUE_MAX


def test_replays_at_once_are_few_round_trips_to_the_front_and_none_to_the_database(
    redis_url: str, back: str, clean: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_at_once(monkeypatch)
    requests: list[bytes] = []

    def note(exchange: ProxyExchange) -> bool:
        requests.append(exchange.request)
        return False

    async def run(front: str, proxy: FaultProxy) -> None:
        async with async_store(front, back) as store:
            for number in range(64):
                claimed = await store.claim(key(number), "f", owner="owner", **TERMS)
                assert isinstance(claimed, Acquired)
                assert await store.complete(claimed.lease, RESULT, retention_ms=3_600_000)
                await store.claim(key(number), "f", owner="another", **TERMS)
            proxy.inject(Fault.DELAY, when=note)

            async def refuse(*_: Any, **__: Any) -> Any:
                raise AssertionError("the database was asked")

            monkeypatch.setattr(store._back, "claim", refuse)
            calls = (store.claim(key(number), "f", owner="another", **TERMS) for number in range(64))
            found = await asyncio.gather(*calls)
        assert all(isinstance(each, Occupied) and each.record.result == RESULT for each in found)

    with FaultProxy(redis_url) as proxy:
        asyncio.run(run(proxy.url, proxy))
    assert 1 <= len(requests) <= 3


def test_first_calls_at_once_stay_together_on_their_way_through_both_stores(
    redis_url: str, postgres_url: str, clean: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, list[int]] = {"front": [], "back": []}

    def count(store: Any, name: str) -> None:
        send = store._send

        async def counting(calls: list[Any]) -> Any:
            sizes[name].append(len(calls))
            return await send(calls)

        monkeypatch.setattr(store, "_send", counting)

    async def run() -> None:
        async with async_store(redis_url, postgres_url) as store:
            assert isinstance(store, AsyncMigratable)
            await store.migrate()
            count(store._front, "front")
            count(store._back, "back")
            for owner in ("owner", "another"):
                await store.claim(key(0), "f", owner=owner, **TERMS)
            for name in sizes:
                sizes[name].clear()
            calls = (store.claim(key(number), "f", owner="owner", **TERMS) for number in range(1, 65))
            assert all(isinstance(each, Acquired) for each in await asyncio.gather(*calls))

    asyncio.run(run())
    for name in ("front", "back"):
        assert sum(sizes[name]) == 64
        assert len(sizes[name]) <= 3, sizes


def test_what_a_transaction_committed_is_replayed_and_copied(redis_url: str, back: str, clean: Any) -> None:
    effects = 0
    with sync_store(redis_url, back) as store, closing(sqlite3.connect(back.removeprefix("sqlite:///"))) as connection:
        finished(store, 0)
        store.claim(key(0), "f", owner="another", **TERMS)
        until(lambda: clean.dbsize() == 1)
        for _ in range(2):
            with connection, within(connection).operation("order-1", scope="shop.pay", fingerprint=10) as op:
                if not op.replayed:
                    effects += 1
                    op.result = {"receipt": 7}
        assert clean.dbsize() == 1, "the front knows nothing of it yet"
        assert isinstance(store, Inspectable)
        stored = next(record for record in store.scan().records if record.key.name == "order-1")
        for _ in range(2):
            claimed = store.claim(stored.key, stored.fingerprint, owner="another", **TERMS)
            assert isinstance(claimed, Occupied)
            assert claimed.record == stored
            until(lambda: clean.dbsize() == 2)
        with counted_answers() as answers:
            store.claim(stored.key, stored.fingerprint, owner="another", **TERMS)
    assert (effects, answers) == (1, {"succeeded": 1})
