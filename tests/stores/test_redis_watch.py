"""Waiting: woken by other processes' changes, with one connection that exists only while somebody waits."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from semel import Key, Lease
from semel.stores.redis import watch
from semel.testing import ManualClock
from servers.redis import RedisServer
from stores.redis_cases import CLAIM, KEY, RESULT, async_store, client, granted, key, sync_store
from waiting import until

LONG_MS = 20_000
ENDINGS: dict[str, Callable[[Any, Lease], object]] = {
    "complete": lambda store, lease: store.complete(lease, RESULT, retention_ms=60_000),
    "release": lambda store, lease: store.release(lease),
}


@pytest.fixture(autouse=True)
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow poll would hide a wake-up that was missed."""
    for module in ("store", "aio"):
        monkeypatch.setattr(f"semel.stores.redis.{module}.POLL_S", 60.0)
    monkeypatch.setattr(watch, "LINGER_S", 0.05)


def listeners(driver: Any) -> int:
    return len([each for each in driver.client_list() if int(each["sub"])])


@pytest.mark.parametrize("ending", ENDINGS)
def test_threads_are_woken_by_another_process(private_redis: RedisServer, ending: str) -> None:
    with (
        sync_store(private_redis.url) as here,
        sync_store(private_redis.url) as there,
        client(private_redis.url) as driver,
    ):
        lease = granted(there.claim(KEY, "f", owner="owner", **CLAIM))
        with ThreadPoolExecutor(8) as threads:
            waits = [threads.submit(here.wait, KEY, owner="owner", timeout_ms=LONG_MS) for _ in range(8)]
            until(lambda: driver.pubsub_channels())
            assert listeners(driver) == 1
            assert ENDINGS[ending](there, lease)
            assert all(wait.result(5) for wait in waits)
        until(lambda: not listeners(driver))
        until(lambda: not [each for each in threading.enumerate() if each.name == "semel-redis-listener"])


def reads(driver: Any) -> int:
    return int(driver.info("commandstats")["cmdstat_get"]["calls"])


def has_read(driver: Any, before: int) -> bool:
    return reads(driver) > before


@pytest.fixture
def one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that comes and goes would have to look again."""
    monkeypatch.setattr(watch, "LINGER_S", 60.0)


@pytest.mark.usefixtures("one_connection")
def test_a_thread_reads_once_and_not_again_when_it_is_told(private_redis: RedisServer) -> None:
    url = private_redis.url
    with sync_store(url) as here, sync_store(url) as there, client(url) as driver, ThreadPoolExecutor(1) as thread:
        for number, ending in enumerate(ENDINGS.values()):
            lease = granted(there.claim(key(number), "f", owner="owner", **CLAIM))
            before = reads(driver)
            wait = thread.submit(here.wait, lease.key, owner="owner", timeout_ms=LONG_MS)
            until(partial(has_read, driver, before))
            assert ending(there, lease)
            assert wait.result(5)
            assert reads(driver) == before + 2, "the waiter's, and that of the call which ended it"


def test_a_confirmation_that_comes_at_once_is_no_change(
    private_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = watch.Listener.following

    @contextmanager
    def confirmed(self: watch.Listener, name: bytes, key: Key) -> Iterator[watch.Channel]:
        with following(self, name, key) as channel:
            until(lambda: channel.confirmed)
            yield channel

    monkeypatch.setattr(watch.Listener, "following", confirmed)
    with sync_store(private_redis.url) as store, client(private_redis.url) as driver:
        granted(store.claim(KEY, "f", owner="owner", **CLAIM))
        before = reads(driver)
        store.wait(KEY, owner="owner", timeout_ms=50)
        assert has_read(driver, before)


@pytest.mark.usefixtures("one_connection")
def test_a_task_reads_once_and_not_again_when_it_is_told(private_redis: RedisServer) -> None:
    async def run() -> None:
        async with async_store(private_redis.url) as here, async_store(private_redis.url) as there:
            for number, ending in enumerate(ENDINGS.values()):
                lease = granted(await there.claim(key(number), "f", owner="owner", **CLAIM))
                before = reads(driver)
                wait = asyncio.create_task(here.wait(lease.key, owner="owner", timeout_ms=LONG_MS))
                while not has_read(driver, before):
                    await asyncio.sleep(0.002)
                done: Any = ending(there, lease)
                assert await done
                assert await asyncio.wait_for(wait, 5)
                assert reads(driver) == before + 2, "the waiter's, and that of the call which ended it"

    with client(private_redis.url) as driver:
        asyncio.run(run())


def test_who_leaves_and_comes_back_still_hears(private_redis: RedisServer) -> None:
    """The channel may be given up, kept or asked for again just then."""

    async def run() -> None:
        async with async_store(private_redis.url) as here, async_store(private_redis.url) as there:
            for number in range(50):
                lease = granted(await there.claim(key(number), "f", owner="owner", **CLAIM))
                for _ in range(number % 5):
                    await here.wait(lease.key, owner="owner", timeout_ms=1 + number % 3)
                wait = asyncio.create_task(here.wait(lease.key, owner="owner", timeout_ms=LONG_MS))
                await asyncio.sleep(number % 7 / 10_000)
                await there.release(lease)
                assert await asyncio.wait_for(wait, 5)

    asyncio.run(run())


def test_no_wake_up_is_missed(private_redis: RedisServer) -> None:
    """The change comes at any moment around the subscription."""
    url = private_redis.url
    with sync_store(url) as here, sync_store(url) as there, ThreadPoolExecutor(1) as thread:
        for number in range(200):
            lease = granted(there.claim(key(number), "f", owner="owner", **CLAIM))
            wait = thread.submit(here.wait, lease.key, owner="owner", timeout_ms=LONG_MS)
            time.sleep(number % 20 / 10_000)
            there.release(lease)
            assert wait.result(5)


def test_no_wake_up_of_a_task_is_missed(private_redis: RedisServer) -> None:
    async def run() -> None:
        async with async_store(private_redis.url) as here, async_store(private_redis.url) as there:

            async def one(number: int) -> None:
                lease = granted(await there.claim(key(number), "f", owner="owner", **CLAIM))
                wait = asyncio.create_task(here.wait(lease.key, owner="owner", timeout_ms=LONG_MS))
                await asyncio.sleep(number % 20 / 10_000)
                await there.release(lease)
                assert await asyncio.wait_for(wait, 5)

            for number in range(100):
                await one(number)
            await asyncio.gather(*(one(number) for number in range(300)))

    asyncio.run(run())


def test_take_over_and_resolve_wake(private_redis: RedisServer) -> None:
    url, clock = private_redis.url, ManualClock()
    with sync_store(url, clock=clock) as here, sync_store(url, clock=clock) as there, client(url) as driver:
        for each in (key(1), key(2)):
            granted(there.claim(each, "f", owner="owner", lease_ms=10, retention_ms=60_000, takeover=False))
        with ThreadPoolExecutor(2) as threads:
            waits = [threads.submit(here.wait, each, owner="owner", timeout_ms=LONG_MS) for each in (key(1), key(2))]
            until(lambda: len(driver.pubsub_channels()) == 2)
            clock.advance(10)
            granted(there.claim(key(1), "f", owner="next", lease_ms=10, retention_ms=60_000, takeover=True))
            seen = there.get(key(2))
            assert seen is not None
            assert there.resolve(seen, RESULT, retention_ms=60_000)
            assert all(wait.result(5) for wait in waits)


def test_the_listener_comes_back_after_its_connection_was_cut(private_redis: RedisServer) -> None:
    with (
        sync_store(private_redis.url) as here,
        sync_store(private_redis.url) as there,
        client(private_redis.url) as driver,
    ):
        lease = granted(there.claim(KEY, "f", owner="owner", **CLAIM))
        with ThreadPoolExecutor(1) as thread:
            wait = thread.submit(here.wait, KEY, owner="owner", timeout_ms=LONG_MS)
            for _ in range(3):
                until(
                    lambda: driver.pubsub_numsub(driver.pubsub_channels()[0])[0][1] if driver.pubsub_channels() else 0
                )
                driver.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                until(lambda: not driver.pubsub_channels() or listeners(driver))
            until(lambda: driver.pubsub_channels())
            there.release(lease)
            assert wait.result(5)


def test_a_task_s_listener_comes_back_too(private_redis: RedisServer) -> None:
    async def run() -> None:
        async with async_store(private_redis.url) as here, async_store(private_redis.url) as there:
            lease = granted(await there.claim(KEY, "f", owner="owner", **CLAIM))
            wait = asyncio.create_task(here.wait(KEY, owner="owner", timeout_ms=LONG_MS))
            for _ in range(3):
                while not driver.pubsub_channels():
                    await asyncio.sleep(0.002)
                driver.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                await asyncio.sleep(0.01)
            await there.release(lease)
            assert await asyncio.wait_for(wait, 5)

    with client(private_redis.url) as driver:
        asyncio.run(run())


def test_the_time_may_run_out(private_redis: RedisServer) -> None:
    async def run() -> None:
        async with async_store(private_redis.url) as store:
            assert not await store.wait(KEY, owner="owner", timeout_ms=20)
            assert await store.wait(KEY, owner="other", timeout_ms=20)

    with sync_store(private_redis.url) as store:
        granted(store.claim(KEY, "f", owner="owner", **CLAIM))
        assert not store.wait(KEY, owner="owner", timeout_ms=20)
        assert store.wait(KEY, owner="other", timeout_ms=20)
        asyncio.run(run())


def test_waiting_ends_when_the_server_dies(private_redis: RedisServer) -> None:
    with sync_store(private_redis.url) as store, client(private_redis.url) as driver, ThreadPoolExecutor(1) as thread:
        granted(store.claim(KEY, "f", owner="owner", **CLAIM))
        wait = thread.submit(store.wait, KEY, owner="owner", timeout_ms=LONG_MS)
        until(lambda: driver.pubsub_channels())
        private_redis.kill()
        wait.result(5)
