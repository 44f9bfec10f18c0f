"""Behind real sentinels: a master that is replaced, demoted or killed, and sentinels that are away."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import redis

from semel import Key, Occupied, StoreMisconfigured, StoreUnavailable
from semel.stores.redis import aio as aio_module
from semel.stores.redis import sentinel
from semel.stores.redis import store as store_module
from semel.stores.redis.commands import Command, Unreached
from semel.stores.redis.driver import AsyncRedisConnections, RedisConnections
from semel.stores.redis.layout import frame, name_of
from semel.stores.redis.settings import RedisSettings
from semel.stores.url import StoreUrl
from servers.redis import ask_server, await_replicas
from servers.redis_sentinel import SERVICE, RedisSentinels
from stores.redis_cases import CLAIM, KEY, RESULT, async_store, granted, key, sync_store
from waiting import until

T = TypeVar("T")
PATIENCE_S = 30.0
LONG_MS = 20_000


@pytest.fixture
def sentinels(redis_sentinels: RedisSentinels) -> Iterator[RedisSentinels]:
    redis_sentinels.clear()
    yield redis_sentinels
    redis_sentinels.settle()


def persist(call: Callable[[], T]) -> T:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except StoreUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def finished(store: Any, numbers: range) -> None:
    for number in numbers:
        lease = granted(store.claim(key(number), "f", owner="owner", **CLAIM))
        assert store.complete(lease, RESULT, retention_ms=60_000)


def all_replayed(store: Any, numbers: range) -> bool:
    found = (persist(lambda n=n: store.claim(key(n), "f", owner="other", **CLAIM)) for n in numbers)  # type: ignore[misc]
    return all(isinstance(each, Occupied) and each.record.result == RESULT for each in found)


def is_listening(sentinels: RedisSentinels, channel: bytes) -> bool:
    try:
        return channel in ask_server(sentinels.master().port, "PUBSUB", "CHANNELS")
    except redis.RedisError:  # the first sentinel does not know the new master yet
        return False


def test_a_promotion_is_followed_by_connections_that_are_open(
    sentinels: RedisSentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old master lives on and takes writes for ten seconds more, because it does not know."""
    monkeypatch.setattr(sentinel, "AGAIN_S", 0.0)
    with sync_store(sentinels.url) as store:
        finished(store, range(20))
        old = sentinels.master()
        await_replicas(old.port, 1)
        new = sentinels.fail_over()
        assert all_replayed(store, range(20))
        persist(lambda: store.claim(KEY, "f", owner="owner", **CLAIM))
        assert ask_server(new.port, "DBSIZE") == 21


def test_a_demoted_master_did_nothing(sentinels: RedisSentinels, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers READONLY on connections that are open, for each call of a script, and the new one is asked."""
    monkeypatch.setattr(sentinel, "AGAIN_S", 60.0)
    with sync_store(sentinels.url) as store:
        finished(store, range(5))
        old = sentinels.master()
        await_replicas(old.port, 2)
        new = sentinels.fail_over()
        ask_server(old.port, "REPLICAOF", "127.0.0.1", new.port)
        granted(store.claim(KEY, "f", owner="owner", **CLAIM))
        assert ask_server(new.port, "DBSIZE") == 6


def test_a_killed_master_is_replaced_by_the_sentinels(sentinels: RedisSentinels) -> None:
    async def run() -> None:
        async with async_store(f"{sentinels.url}?wait_replicas=1") as store:
            lease = granted(await store.claim(KEY, "f", owner="owner", **CLAIM))
            await asyncio.to_thread(sentinels.master().kill)
            while True:
                try:
                    assert await store.complete(lease, RESULT, retention_ms=60_000)
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.02)
            found = await store.claim(KEY, "f", owner="other", **CLAIM)
            assert isinstance(found, Occupied)
            assert found.record.result == RESULT

    asyncio.run(asyncio.wait_for(run(), 60))


def test_sentinels_that_are_away_are_passed_over(sentinels: RedisSentinels) -> None:
    sentinels.sentinels[0].kill()
    with sync_store(sentinels.url) as store:
        granted(store.claim(KEY, "f", owner="owner", **CLAIM))
    sentinels.sentinels[0].restart()


def test_without_any_sentinel_the_call_is_refused_in_time(sentinels: RedisSentinels) -> None:
    with sync_store("redis+sentinel://127.0.0.1:1/main?timeout_ms=200") as store:
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"sentinel 127\.0\.0\.1:1"):
            store.get(KEY)
        assert time.monotonic() - started < 5


def test_a_service_that_is_not_known_is_a_mistake_in_the_url(sentinels: RedisSentinels) -> None:
    with (
        sync_store(sentinels.url.replace(SERVICE, "other")) as store,
        pytest.raises(StoreMisconfigured, match="knows the service 'other'"),
    ):
        store.get(KEY)


def test_a_new_connection_asks_for_the_role_before_anything_is_sent(sentinels: RedisSentinels) -> None:
    """A sentinel may name a server that is the master no more."""
    replica = next(each for each in sentinels.servers if each is not sentinels.master())
    settings = RedisSettings.of(StoreUrl.parse(sentinels.url)).at(("127.0.0.1", replica.port))
    read = Command(("GET", "semel:{x}"), b"semel:{x}")
    with pytest.raises(Unreached, match="read-only replica"):
        RedisConnections(settings).exchange([read], time.monotonic() + 5)

    async def ask() -> None:
        connections = AsyncRedisConnections(settings)
        with pytest.raises(Unreached, match="read-only replica"):
            await connections.exchange([read], asyncio.get_running_loop().time() + 5)
        await connections.close()

    asyncio.run(ask())


def test_a_waiter_hears_of_a_change_after_a_promotion(
    sentinels: RedisSentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends early while there is no master; the next one listens to the new one."""
    for module in (store_module, aio_module):
        monkeypatch.setattr(module, "POLL_S", 60.0)
    url, channel = f"{sentinels.url}?timeout_ms=300", name_of(b"semel", frame(KEY))
    with sync_store(url) as here, sync_store(url) as there, ThreadPoolExecutor(1) as thread:
        lease = granted(there.claim(KEY, "f", owner="owner", **CLAIM))
        old = sentinels.master()
        await_replicas(old.port, 2)
        wait = thread.submit(here.wait, KEY, owner="owner", timeout_ms=LONG_MS)
        until(lambda: channel in ask_server(old.port, "PUBSUB", "CHANNELS"))
        old.kill()
        assert wait.result(10)
        persist(lambda: there.renew(lease, lease_ms=30_000))
        wait = thread.submit(here.wait, KEY, owner="owner", timeout_ms=LONG_MS)
        until(lambda: is_listening(sentinels, channel))
        assert there.complete(lease, RESULT, retention_ms=60_000)
        assert wait.result(10)


def test_a_master_with_too_few_replicas_takes_no_claim(sentinels: RedisSentinels) -> None:
    master = sentinels.master().port
    ask_server(master, "CONFIG", "SET", "min-replicas-to-write", 3)
    try:
        with sync_store(sentinels.url) as store, pytest.raises(StoreUnavailable, match="min-replicas-to-write"):
            store.claim(KEY, "f", owner="owner", **CLAIM)
    finally:
        ask_server(master, "CONFIG", "SET", "min-replicas-to-write", 0)


def test_a_cursor_of_the_old_master_begins_again_on_the_new_one(sentinels: RedisSentinels) -> None:
    with sync_store(sentinels.url) as store:
        finished(store, range(60))
        await_replicas(sentinels.master().port, 2)
        first = store.scan(limit=20)
        sentinels.fail_over()
        shown = {record.key for record in first.records}
        cursor = first.cursor
        while cursor is not None:
            page = persist(lambda cursor=cursor: store.scan(cursor=cursor, limit=20))  # type: ignore[misc]
            shown.update(record.key for record in page.records)
            cursor = page.cursor
        assert shown == {Key("tenant", "POST /payments", f"key-{number}") for number in range(60)}


def test_doctor_looks_at_the_master(sentinels: RedisSentinels) -> None:
    with sync_store(f"{sentinels.url}?wait_replicas=2") as store:
        said = {each.title: (each.level, each.detail) for each in store.examine()}
    assert said["role"] == ("ok", "a primary with 2 replicas")
    assert said["confirmation"][0] == "ok"
