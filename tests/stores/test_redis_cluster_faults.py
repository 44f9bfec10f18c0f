"""A real cluster on which slots move, masters are killed and hang, and replicas do not confirm. Effects are counted."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from semel import Acquired, Key, Occupied, Result, StoreError, StoreMisconfigured, StoreUnavailable
from semel.core.copies import FindCopy, ForbidCopy, OpenCopy, PutCopy
from semel.store import Filter
from semel.stores.redis import aio as aio_module
from semel.stores.redis import store as store_module
from semel.stores.redis.driver import AsyncRedisConnections
from semel.stores.redis.layout import frame, name_of
from semel.stores.redis.slots import slot_of
from servers.needing import needed
from servers.redis import ask_server, await_replicas
from servers.redis_cluster import ClusterNode, RedisCluster
from stores.redis_cases import CLAIM, RESULT, async_store, granted, key, sync_store
from waiting import until

T = TypeVar("T")
PATIENCE_S = 30.0
LONG_MS = 20_000


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> Iterator[RedisCluster]:
    redis_cluster.clear()
    yield redis_cluster
    redis_cluster.settle()


def name(key: Key) -> bytes:
    return name_of(b"semel", frame(key))


def keys_on(cluster: RedisCluster, node: ClusterNode, count: int) -> list[Key]:
    found = (key(number) for number in range(100_000))
    owners = {each: cluster.owner(each) for each in (0, 6_000, 12_000)}
    spans = [slot for slot, owner in owners.items() if owner is node]
    return [each for each in found if slot_of(name(each)) // 5462 * 6_000 in spans][:count]


def keys_of_one_slot(count: int) -> tuple[int, list[Key]]:
    """The slot of the first key, and keys that are all in it."""
    slot = slot_of(name(key(0)))
    found: list[Key] = []
    number = 0
    while len(found) < count:
        if slot_of(name(key(number))) == slot:
            found.append(key(number))
        number += 1
    return slot, found


def persist(call: Callable[[], T]) -> T:
    """Ask until the store answers, with the same owner, as a caller does."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except StoreUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_batch_is_one_exchange_with_each_node(cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[int] = Counter()
    exchange = AsyncRedisConnections.exchange

    async def counted(self: AsyncRedisConnections, commands: Any, due_s: float) -> Any:
        asked[id(self)] += 1
        return await exchange(self, commands, due_s)

    async def run() -> None:
        async with async_store(cluster.url) as store:
            await asyncio.gather(*(store.claim(key(n), "f", owner="warm", **CLAIM) for n in range(30)))
            await asyncio.gather(*(store.get(key(n)) for n in range(30)))
            monkeypatch.setattr(AsyncRedisConnections, "exchange", counted)
            claims = await asyncio.gather(*(store.claim(key(n), "f", owner="o", **CLAIM) for n in range(100, 190)))
            assert all(isinstance(each, Acquired) for each in claims)
            assert list(asked.values()) == [1, 1, 1]

    asyncio.run(run())


def test_a_key_of_one_node_is_read_by_every_other_client(cluster: RedisCluster) -> None:
    with sync_store(cluster.url) as one, sync_store(cluster.url) as two:
        for number in range(30):
            lease = granted(one.claim(key(number), "f", owner="one", **CLAIM))
            assert isinstance(two.claim(key(number), "f", owner="two", **CLAIM), Occupied)
            assert one.complete(lease, RESULT, retention_ms=60_000)
            assert two.count_attempt(key(number), "boom", retention_ms=60_000) == 1
        assert two.counts().succeeded == 30


def test_copies_of_another_store_are_held_on_every_node(cluster: RedisCluster) -> None:
    """What a tiered store asks of its front."""
    keys = [key(number) for number in range(30)]

    async def run() -> None:
        async with async_store(cluster.url) as store:
            front = store.open_front(timeout_ms=2_000)
            assert all(await asyncio.gather(*(front.answer_copy(OpenCopy("db", of, b"ticket")) for of in keys)))
            puts = (front.answer_copy(PutCopy("db", of, b"ticket", b"copy", 60_000)) for of in keys)
            assert all(await asyncio.gather(*puts))
            assert await front.answer_copy(ForbidCopy("db", keys[0], 0))
            found = await asyncio.gather(*(front.answer_copy(FindCopy("db", of)) for of in keys))
            assert found == [None, *([b"copy"] * 29)]
            await front.close()

    asyncio.run(run())


def test_a_single_node_is_not_used_as_if_it_had_everything(cluster: RedisCluster) -> None:
    one, other, _ = cluster.masters()
    with sync_store(one.url) as store, pytest.raises(StoreError, match=r"write redis\+cluster://"):
        store.get(keys_on(cluster, other, 1)[0])


def test_a_single_server_is_no_cluster(redis_url: str) -> None:
    place = redis_url.replace("redis://", "redis+cluster://").rpartition("/")[0]
    with sync_store(place) as store, pytest.raises(StoreMisconfigured, match=r"write redis:// without \+cluster"):
        store.get(key(1))


def test_a_slot_moves_while_traffic_runs(cluster: RedisCluster) -> None:
    """What is there already is found on either node, what is new goes to the new one, and each key is granted once."""
    slot, keys = keys_of_one_slot(24)
    source = cluster.owner(slot)
    target = next(node for node in cluster.masters() if node is not source)
    winners: Counter[Key] = Counter()

    def one(number: int) -> None:
        owner = f"owner-{number}"
        of = keys[number % len(keys)]
        found = persist(lambda: store.claim(of, "f", owner=owner, **CLAIM))
        if isinstance(found, Acquired):
            winners[of] += 1
            assert persist(lambda: store.complete(found.lease, RESULT, retention_ms=60_000))

    with sync_store(cluster.url) as store, ThreadPoolExecutor(6) as threads:
        list(threads.map(one, range(12)))
        cluster.begin_move(slot, source, target)
        list(threads.map(one, range(18)))  # some are here, new ones are asked for there
        work = [threads.submit(one, number) for number in range(240)]
        while cluster.move_keys(slot, source, target):
            pass
        cluster.end_move(slot, target)
        for each in work:
            each.result()
        list(threads.map(one, range(48)))
        assert cluster.owner(slot) is target
        assert set(winners.values()) == {1}
        assert len(winners) == len(keys)
        assert store.counts().succeeded == len(keys)
    back = next(node for node in cluster.masters() if node is source)
    cluster.begin_move(slot, target, back)
    while cluster.move_keys(slot, target, back):
        pass
    cluster.end_move(slot, back)


def test_a_batch_of_a_slot_that_is_half_moved_is_answered(cluster: RedisCluster) -> None:
    """No node would take a script with names of both sides, or with new ones (TRYAGAIN), until all has moved."""
    slot, keys = keys_of_one_slot(8)
    source = cluster.owner(slot)
    target = next(node for node in cluster.masters() if node is not source)

    async def run() -> None:
        async with async_store(cluster.url) as store:
            first = await asyncio.gather(*(store.claim(of, "f", owner="one", **CLAIM) for of in keys[:4]))
            assert all(isinstance(each, Acquired) for each in first)
            cluster.begin_move(slot, source, target)
            found = await asyncio.gather(*(store.claim(of, "f", owner="two", **CLAIM) for of in keys))
            assert [isinstance(each, Acquired) for each in found] == [False] * 4 + [True] * 4
            assert (await store.counts()).in_progress >= 4
            await asyncio.to_thread(cluster.move_keys, slot, source, target)
            found = await asyncio.gather(*(store.claim(of, "f", owner="three", **CLAIM) for of in keys))
            assert not any(isinstance(each, Acquired) for each in found)

    asyncio.run(run())
    cluster.end_move(slot, target)
    cluster.begin_move(slot, target, source)
    cluster.move_keys(slot, target, source)
    cluster.end_move(slot, source)


def test_a_killed_master_s_keys_are_served_by_its_replica(cluster: RedisCluster) -> None:
    with sync_store(cluster.url) as store:
        leases = [granted(store.claim(key(number), "f", owner="owner", **CLAIM)) for number in range(60)]
        assert all(store.complete(lease, RESULT, retention_ms=60_000) for lease in leases[:30])
        for master in cluster.masters():
            await_replicas(master.port)
        old = cluster.owner(name(leases[0].key))
        cluster.fail_over(old)
        for number in range(60):
            found = persist(lambda number=number: store.claim(key(number), "f", owner="other", **CLAIM))  # type: ignore[misc]
            assert isinstance(found, Occupied)
            assert found.record.result == (RESULT if number < 30 else None)
        assert all(store.complete(lease, RESULT, retention_ms=60_000) for lease in leases[30:])


def test_a_failover_in_good_order_is_not_even_noticed(cluster: RedisCluster) -> None:
    async def run() -> None:
        async with async_store(cluster.url) as store:
            await asyncio.gather(*(store.claim(key(number), "f", owner="o", **CLAIM) for number in range(40)))
            for master in cluster.masters():
                replica = cluster.replica_of(master)
                promoted = asyncio.create_task(asyncio.to_thread(cluster.promote, replica, orderly=True))
                while not promoted.done():
                    found = await asyncio.gather(*(store.get(key(number)) for number in range(40)))
                    assert all(found)
                await promoted
            found = await asyncio.gather(*(store.get(key(number)) for number in range(40)))
            assert all(found)

    asyncio.run(run())


def test_while_a_vote_lasts_calls_are_refused_in_time_and_then_answered(cluster: RedisCluster) -> None:
    """Nothing is promoted by hand: the nodes find out and vote."""
    master = cluster.masters()[0]
    mine = keys_on(cluster, master, 3)
    with sync_store(f"{cluster.url}?timeout_ms=300") as store:
        lease = granted(store.claim(mine[0], "f", owner="owner", **CLAIM))
        await_replicas(master.port)
        master.kill()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.claim(mine[1], "f", owner="owner", **CLAIM)
        assert time.monotonic() - started < 5
        assert persist(lambda: store.complete(lease, RESULT, retention_ms=60_000))
        assert isinstance(persist(lambda: store.claim(mine[0], "f", owner="other", **CLAIM)), Occupied)
        granted(store.claim(mine[1], "f", owner="owner", **CLAIM))


def test_a_node_that_hangs_delays_no_call_for_another_one(cluster: RedisCluster) -> None:
    hung, *others = cluster.masters()
    [mine], theirs = keys_on(cluster, hung, 1), [each for node in others for each in keys_on(cluster, node, 20)]

    async def run() -> None:
        async with async_store(f"{cluster.url}?timeout_ms=800") as store:
            await asyncio.gather(*(store.get(key(number)) for number in range(60)))
            hung.pause()
            try:
                late = asyncio.create_task(store.claim(mine, "f", owner="o", **CLAIM))
                await asyncio.sleep(0.02)
                claims = (store.claim(each, "f", owner="o", **CLAIM) for each in theirs)
                replies = await asyncio.gather(*claims, return_exceptions=True)
                assert all(isinstance(each, Acquired) for each in replies)
                assert not late.done()
                with pytest.raises(StoreUnavailable):
                    await late
            finally:
                hung.resume()

    asyncio.run(run())


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_write_counts_when_its_replica_has_it(cluster: RedisCluster, face: str) -> None:
    """Without the replica nothing is acknowledged, also not to the same owner who asks again; replays go on."""
    master = cluster.masters()[0]
    fresh, open_key, done = keys_on(cluster, master, 3)
    url = f"{cluster.url}?wait_replicas=1&wait_ms=100&timeout_ms=2000"

    async def run(store: Any, call: Any) -> None:
        open_lease = granted(await call(store.claim, open_key, "f", owner="owner", **CLAIM))
        lease = granted(await call(store.claim, done, "f", owner="owner", **CLAIM))
        assert await call(store.complete, lease, RESULT, retention_ms=60_000)
        replica = cluster.cut_link(master)
        try:
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="0 of 1 replicas confirmed a write within 100 ms"):
                    await call(store.claim, fresh, "f", owner="owner", **CLAIM)
                with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
                    await call(store.get, open_key)
                with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
                    await call(store.complete, open_lease, RESULT, retention_ms=60_000)
            replay = await call(store.claim, done, "f", owner="other", **CLAIM)
            assert isinstance(replay, Occupied)
            assert replay.record.result == RESULT
        finally:
            cluster.mend_link(replica)
        until(lambda: replica.ask("ROLE")[3] == b"connected")
        granted(await call(store.claim, fresh, "f", owner="owner", **CLAIM))
        assert await call(store.complete, open_lease, RESULT, retention_ms=60_000)

    async def direct(method: Any, *args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        return await found if face == "async" else found

    async def main() -> None:
        if face == "async":
            async with async_store(url) as store:
                await run(store, direct)
        else:
            with sync_store(url) as blocking:
                await run(blocking, direct)

    asyncio.run(main())


def test_a_batch_in_which_one_write_is_not_confirmed_still_replays(cluster: RedisCluster) -> None:
    master = cluster.masters()[0]
    fresh, done = keys_on(cluster, master, 2)

    async def run() -> None:
        async with async_store(f"{cluster.url}?wait_replicas=1&wait_ms=100") as store:
            lease = granted(await store.claim(done, "f", owner="owner", **CLAIM))
            assert await store.complete(lease, RESULT, retention_ms=60_000)
            replica = cluster.cut_link(master)
            claims = (store.claim(each, "f", owner="other", **CLAIM) for each in (fresh, done))
            refused, replay = await asyncio.gather(*claims, return_exceptions=True)
            cluster.mend_link(replica)
            assert isinstance(refused, StoreUnavailable)
            assert isinstance(replay, Occupied)

    asyncio.run(run())


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow poll would hide a wake-up that was missed."""
    for module in (store_module, aio_module):
        monkeypatch.setattr(module, "POLL_S", 60.0)


def listening(cluster: RedisCluster) -> list[ClusterNode]:
    return [
        node for node in cluster.nodes if node._process and b"sub=1" in node.ask("CLIENT", "LIST", "TYPE", "pubsub")
    ]


@pytest.mark.usefixtures("no_poll")
def test_a_waiter_hears_of_changes_on_every_node_and_after_a_failover(cluster: RedisCluster) -> None:
    with sync_store(cluster.url) as here, sync_store(cluster.url) as there, ThreadPoolExecutor(1) as thread:
        for number, master in enumerate(cluster.masters()):
            lease = granted(there.claim(keys_on(cluster, master, 1)[0], "f", owner=f"{number}", **CLAIM))
            wait = thread.submit(here.wait, lease.key, owner=f"{number}", timeout_ms=LONG_MS)
            until(lambda: listening(cluster))
            there.release(lease)
            assert wait.result(10)
        lease = granted(there.claim(key(7), "f", owner="owner", **CLAIM))
        await_replicas(cluster.owner(name(key(7))).port)
        wait = thread.submit(here.wait, lease.key, owner="owner", timeout_ms=LONG_MS)
        [heard] = until(lambda: listening(cluster))
        if heard in cluster.masters():
            cluster.fail_over(heard)
        until(lambda: [node for node in listening(cluster) if node is not heard])
        persist(lambda: there.complete(lease, RESULT, retention_ms=60_000))
        assert wait.result(10)


@pytest.mark.usefixtures("no_poll")
def test_a_task_hears_of_changes_on_every_node_and_after_a_failover(cluster: RedisCluster) -> None:
    async def run() -> None:
        async with async_store(cluster.url) as here, async_store(cluster.url) as there:
            lease = granted(await there.claim(key(7), "f", owner="owner", **CLAIM))
            await asyncio.to_thread(await_replicas, cluster.owner(name(key(7))).port)
            wait = asyncio.create_task(here.wait(lease.key, owner="owner", timeout_ms=LONG_MS))
            [heard] = await asyncio.to_thread(until, lambda: listening(cluster))
            await asyncio.to_thread(cluster.fail_over, heard)
            await asyncio.to_thread(until, lambda: [node for node in listening(cluster) if node is not heard])
            for _ in range(200):
                try:
                    assert await there.complete(lease, RESULT, retention_ms=60_000)
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.02)
            assert await asyncio.wait_for(wait, 10)

    asyncio.run(run())


def test_pages_go_over_all_nodes_also_when_one_of_them_is_replaced(cluster: RedisCluster) -> None:
    with sync_store(cluster.url) as store:
        for number in range(150):
            granted(store.claim(key(number), "f", owner="owner", **CLAIM))
        for master in cluster.masters():
            await_replicas(master.port)
        shown: Counter[str] = Counter()
        cursor: str | None = None
        pages = 0
        while True:
            page = persist(lambda cursor=cursor: store.scan(cursor=cursor, limit=20))  # type: ignore[misc]
            shown.update(record.key.name for record in page.records)
            cursor, pages = page.cursor, pages + 1
            if cursor is None:
                break
            if pages == 1:
                cluster.fail_over(cluster.masters()[0])
        assert len(shown) == 150
        assert max(shown.values()) <= 2
        assert store.counts().in_progress == 150
        assert len(store.scan(Filter(tenant="tenant"), limit=200).records) == 150


def test_purge_goes_over_all_nodes_and_keeps_its_limit(cluster: RedisCluster) -> None:
    with sync_store(cluster.url) as store:
        for number in range(60):
            lease = granted(store.claim(key(number), "f", owner="owner", lease_ms=1, retention_ms=1, takeover=False))
            store.complete(lease, Result("raw", b""), retention_ms=1)
        time.sleep(0.01)
        assert store.purge(limit=7) == 7
        assert store.purge(limit=100) == 53
        assert store.purge(limit=100) == 0


def test_every_node_is_checked_and_the_one_that_evicts_is_named(cluster: RedisCluster) -> None:
    bad = cluster.masters()[1]
    bad.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with sync_store(cluster.url) as store:
            mine = keys_on(cluster, bad, 1)[0]
            with pytest.raises(StoreMisconfigured, match=f"127.0.0.1:{bad.port}.*allkeys-lru"):
                store.get(mine)
            fine = keys_on(cluster, cluster.masters()[0], 1)[0]
            assert store.get(fine) is None
            said = [(each.title, each.level, each.detail) for each in store.examine()]
            assert ("eviction", "ok", f"127.0.0.1:{cluster.masters()[0].port}: maxmemory-policy is noeviction") in said
            [problem] = [detail for title, level, detail in said if (title, level) == ("eviction", "problem")]
            assert problem.startswith(f"127.0.0.1:{bad.port}: maxmemory-policy is allkeys-lru")
    finally:
        bad.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_doctor_says_what_a_failover_may_lose(cluster: RedisCluster) -> None:
    def said(url: str) -> dict[str, str]:
        with sync_store(url) as store:
            return {each.title: each.level for each in store.examine()}

    assert said(cluster.url)["confirmation"] == "warning"
    assert said(f"{cluster.url}?wait_replicas=1")["confirmation"] == "ok"


def test_a_cluster_of_one_node_without_replicas() -> None:
    with needed("redis", lambda: ClusterNode("--cluster-require-full-coverage", "no")) as alone:
        ask_server(alone.port, "CLUSTER", "ADDSLOTS", *range(100))
        with sync_store(f"redis+cluster://127.0.0.1:{alone.port}?timeout_ms=200") as store:
            with pytest.raises(StoreUnavailable, match="no node serves slot"):
                store.get(key(1))
            with pytest.raises(StoreUnavailable, match="16284 slots have no node"):
                store.counts()
            ask_server(alone.port, "CLUSTER", "ADDSLOTS", *range(100, 16_384))
            assert persist(lambda: store.get(key(1))) is None
            roles = [each for each in store.examine() if each.title == "role"]
            assert [each.level for each in roles] == ["warning"]
