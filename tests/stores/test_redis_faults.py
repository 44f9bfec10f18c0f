"""Accidents: killed, paused, full, flushed and cut-off servers, forked processes, cancelled callers."""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from redis.exceptions import ResponseError

from semel import Acquired, Key, Lease, Occupied, Result, StoreUnavailable
from semel.core.effects import Plan, do
from semel.errors import StoreTimeout
from semel.stores.redis.aio import AsyncRedisStore
from semel.stores.redis.commands import Command
from semel.stores.redis.store import RedisStore
from servers.redis import RedisServer
from stores.redis_cases import CLAIM, KEY, RESULT, async_store, client, granted, key, server, sync_store
from waiting import until

SHORT = "timeout_ms=200"


def test_what_was_acknowledged_survives_kill_9(private_redis: RedisServer) -> None:
    with sync_store(private_redis.url) as store:
        leases = [granted(store.claim(key(number), "f", owner="owner", **CLAIM)) for number in range(100)]
        assert all(store.complete(lease, RESULT, retention_ms=60_000) for lease in leases[:50])
        private_redis.kill()
        with pytest.raises(StoreUnavailable, match="redis://127"):
            store.get(KEY)
        private_redis.restart()
        for number in range(100):
            found = store.claim(key(number), "f", owner="other", **CLAIM)
            assert isinstance(found, Occupied)
            assert found.record.result == (RESULT if number < 50 else None)
        assert all(store.complete(lease, RESULT, retention_ms=60_000) for lease in leases[50:])


def test_a_paused_server_is_unavailable_and_the_claim_may_have_happened(private_redis: RedisServer) -> None:
    with sync_store(f"{private_redis.url}?{SHORT}") as store:
        assert store.get(KEY) is None
        private_redis.pause()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.claim(KEY, "f", owner="owner", **CLAIM)
        assert time.monotonic() - started < 10
        private_redis.resume()
        assert granted(store.claim(KEY, "f", owner="owner", **CLAIM)).attempt == 1
        assert isinstance(store.claim(KEY, "f", owner="other", **CLAIM), Occupied)


def test_a_late_reply_is_nobody_else_s(private_redis: RedisServer) -> None:
    """The reply that came after the time-out must not be read by the next caller."""

    async def run() -> None:
        async with async_store(f"{private_redis.url}?{SHORT}") as store:
            granted(await store.claim(key(1), "f", owner="one", **CLAIM))
            private_redis.pause()
            asked = (store.get(key(1)), store.claim(key(1), "f", owner="other", **CLAIM), store.scan(), store.counts())
            replies = await asyncio.gather(*asked, return_exceptions=True)
            private_redis.resume()
            assert {type(reply) for reply in replies} == {StoreTimeout}
            assert await store.get(key(2)) is None
            assert granted(await store.claim(key(2), "f", owner="two", **CLAIM)).key == key(2)
            assert len((await store.scan()).records) == 2

    asyncio.run(run())


def test_a_cancelled_scan_leaves_no_reply_behind(private_redis: RedisServer) -> None:
    async def run() -> None:
        async with async_store(private_redis.url) as store:
            granted(await store.claim(key(1), "f", owner="one", **CLAIM))
            for _ in range(5):
                private_redis.pause()
                tasks = [asyncio.create_task(each) for each in (store.scan(), store.counts(), store.purge(limit=5))]
                await asyncio.sleep(0.005)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                private_redis.resume()
                assert (await store.counts()).in_progress == 1
                assert len((await store.scan()).records) == 1
                assert await store.purge(limit=5) == 0

    asyncio.run(run())


def test_a_full_server_takes_no_new_key_but_still_replays_and_gives_back(private_redis: RedisServer) -> None:
    with client(private_redis.url) as driver, sync_store(private_redis.url) as store:
        done = granted(store.claim(key(1), "f", owner="owner", **CLAIM))
        store.complete(done, RESULT, retention_ms=60_000)
        open_lease = granted(store.claim(key(2), "f", owner="owner", **CLAIM))
        driver.config_set("maxmemory", "1")
        with pytest.raises(StoreUnavailable, match="raise maxmemory"):
            store.claim(KEY, "f", owner="owner", **CLAIM)
        with pytest.raises(StoreUnavailable, match="raise maxmemory"):
            store.complete(open_lease, RESULT, retention_ms=60_000)
        assert isinstance(store.claim(key(1), "f", owner="other", **CLAIM), Occupied)
        assert store.release(open_lease)
        driver.config_set("maxmemory", "0")
        assert store.get(KEY) is None
        granted(store.claim(KEY, "f", owner="owner", **CLAIM))


def test_a_server_that_became_a_replica(private_redis: RedisServer) -> None:
    with client(private_redis.url) as driver, sync_store(private_redis.url) as store, server() as primary:
        assert store.get(KEY) is None
        driver.replicaof("127.0.0.1", str(primary.port))
        with pytest.raises(StoreUnavailable, match=r"replica|loading"):
            store.claim(KEY, "f", owner="owner", **CLAIM)
        driver.replicaof("NO", "ONE")
        granted(store.claim(KEY, "f", owner="owner", **CLAIM))


def test_a_server_that_is_busy_with_somebody_s_script(private_redis: RedisServer) -> None:
    def block() -> None:
        with client(private_redis.url) as blocker, suppress(ResponseError):
            blocker.eval("while true do end", 0)

    with client(private_redis.url) as driver, sync_store(private_redis.url) as store, ThreadPoolExecutor(1) as thread:
        assert store.get(KEY) is None
        driver.config_set("busy-reply-threshold", "1")
        blocked = thread.submit(block)
        until(lambda: _busy(store))
        driver.script_kill()
        blocked.result()
        granted(store.claim(KEY, "f", owner="owner", **CLAIM))


def _busy(store: RedisStore) -> bool:
    try:
        store.get(KEY)
    except StoreUnavailable as error:
        return "BUSY" in str(error)
    return False


def test_scripts_may_be_flushed_at_any_time(private_redis: RedisServer) -> None:
    def one(number: int) -> bool:
        lease = granted(store.claim(key(number), "f", owner="owner", **CLAIM))
        return store.complete(lease, RESULT, retention_ms=60_000)

    with client(private_redis.url) as driver, sync_store(private_redis.url) as store:
        with ThreadPoolExecutor(8) as threads:
            work = [threads.submit(one, number) for number in range(400)]
            while not all(each.done() for each in work):
                driver.script_flush()
            assert all(each.result() for each in work)
        assert store.counts().succeeded == 400


def test_connections_may_be_cut_at_any_time(private_redis: RedisServer) -> None:
    """Every caller repeats with its own owner until it is answered; each key is granted once."""

    def persist(call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except StoreUnavailable:
                pass

    def one(number: int) -> str | None:
        owner = f"owner-{number}"
        found = persist(lambda: store.claim(key(number % 100), "f", owner=owner, **CLAIM))
        if not isinstance(found, Acquired):
            return None
        assert persist(lambda: store.complete(found.lease, Result("raw", owner.encode()), retention_ms=60_000))
        return owner

    with client(private_redis.url) as driver, sync_store(private_redis.url) as store:
        with ThreadPoolExecutor(8) as threads:
            work = [threads.submit(one, number) for number in range(800)]
            for _ in range(100):
                driver.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                time.sleep(0.002)
            winners = [each.result() for each in work if each.result() is not None]
        assert len(winners) == 100
        kept = {record.result.payload.decode() for record in store.scan(limit=200).records if record.result}
        assert kept == set(winners)


def test_connections_of_tasks_may_be_cut_at_any_time(private_redis: RedisServer) -> None:
    async def one(store: AsyncRedisStore, of: Key, owner: str) -> bool:
        while True:
            try:
                return isinstance(await store.claim(of, "f", owner=owner, **CLAIM), Acquired)
            except StoreUnavailable:
                pass

    async def run() -> None:
        async with async_store(private_redis.url) as store:
            for cut in range(40):
                keys = [key(1000 * cut + number) for number in range(20)]
                tasks = [asyncio.create_task(one(store, of, f"owner-{n}")) for of in keys for n in range(5)]
                for _ in range(3):
                    await asyncio.sleep(cut / 20_000)
                    driver.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                assert sum(await asyncio.gather(*tasks)) == 20

    with client(private_redis.url) as driver:
        asyncio.run(run())


def test_an_idle_connection_that_the_server_closed_is_not_a_failure(private_redis: RedisServer) -> None:
    async def run() -> None:
        async with async_store(private_redis.url) as store:
            for _ in range(3):
                await store.get(KEY)
                driver.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await asyncio.sleep(0.01)

    with client(private_redis.url) as driver, sync_store(private_redis.url) as store:
        for _ in range(3):
            store.get(KEY)
            driver.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        asyncio.run(run())


def test_connections_are_bounded(private_redis: RedisServer) -> None:
    with client(private_redis.url) as driver, sync_store(f"{private_redis.url}?pool_max=2") as store:
        with ThreadPoolExecutor(16) as threads:
            assert not any(threads.map(lambda _: store.get(KEY), range(300)))
        assert len(driver.client_list()) <= 3


def test_a_full_pool_says_so(private_redis: RedisServer) -> None:
    with sync_store(f"{private_redis.url}?pool_max=1&{SHORT}") as store:
        assert store.get(KEY) is None
        private_redis.pause()
        with ThreadPoolExecutor(8) as threads:
            errors = [work.exception() for work in [threads.submit(store.get, KEY) for _ in range(8)]]
        private_redis.resume()
        assert {type(error) for error in errors} == {StoreTimeout}
        assert any("all 1 connections were busy" in str(error) for error in errors)
        assert store.get(KEY) is None


def test_a_store_works_on_both_sides_of_a_fork(redis_url: str) -> None:
    with sync_store(redis_url) as store:
        lease = granted(store.claim(Key("fork", "", "parent"), "f", owner="parent", **CLAIM))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                mine = granted(store.claim(Key("fork", "", "child"), "f", owner="child", **CLAIM))
                seen = store.claim(lease.key, "f", owner="child", **CLAIM)
                if isinstance(seen, Occupied) and store.complete(mine, RESULT, retention_ms=60_000):
                    code = 0
            finally:
                os._exit(code)
        for _ in range(200):
            assert store.renew(lease, lease_ms=30_000) is not None
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.complete(lease, RESULT, retention_ms=60_000)
        assert (record := store.get(Key("fork", "", "child"))) is not None
        assert record.result == RESULT


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the first two loops end without closing the store
def test_an_async_store_works_in_one_loop_after_another(redis_url: str) -> None:
    store = async_store(redis_url)

    async def claim(owner: str) -> object:
        return await store.claim(Key("loops", "", "key"), "f", owner=owner, **CLAIM)

    async def end() -> None:
        assert await store.complete(Lease(Key("loops", "", "key"), "one", 1, 0), RESULT, retention_ms=60_000)
        await store.close()

    assert isinstance(asyncio.run(claim("one")), Acquired)
    assert isinstance(asyncio.run(claim("two")), Occupied)
    asyncio.run(end())


def test_a_server_error_that_nobody_foresaw_is_still_ours(redis_url: str) -> None:
    def plan() -> Plan[object]:
        return (yield from do(Command(("SET", "semel:{x}", "1", "NONSENSE"))))

    with sync_store(redis_url) as store, pytest.raises(StoreUnavailable, match="syntax error"):
        store._link.get().run(plan())
