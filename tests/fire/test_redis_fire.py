"""Redis: no connections left, out of memory for tasks, and the failover that loses what was acknowledged."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import redis
import uvloop

from fire.cases import ANSWER, FACES, FINGERPRINT, RETENTION_MS, Ledger, claim, execute, granted, opened, persist
from semel import Acquired, Key, Policy, StoreUnavailable, open_async_store
from semel.core.decisions import Released, Run, Stored
from semel.core.protocol import acquire, settle
from semel.core.tables import Ending
from semel.store import AsyncWatchable
from semel.testing.proxy import FaultProxy
from servers.redis import RedisServer

KEY = Key("fire", "s", "key")


@pytest.mark.parametrize("face", FACES)
def test_a_server_with_no_connections_left(private_redis: RedisServer, face: str) -> None:
    with redis.Redis.from_url(private_redis.url) as admin, opened(face, private_redis.url) as one:
        admin.config_set("maxclients", 1)
        with pytest.raises(StoreUnavailable, match=private_redis.url):  # its reason may be lost with the connection
            claim(one.store, KEY, "a")
        admin.config_set("maxclients", 100)
        assert isinstance(claim(one.store, KEY, "a"), Acquired)


def test_a_server_without_memory_refuses_tasks_too(private_redis: RedisServer) -> None:
    with redis.Redis.from_url(private_redis.url) as admin, opened("async", private_redis.url) as one:
        lease = granted(claim(one.store, KEY, "a"))
        admin.config_set("maxmemory", "1")
        with pytest.raises(StoreUnavailable, match="raise maxmemory"):
            one.store.complete(lease, ANSWER, retention_ms=RETENTION_MS)
        record = one.store.get(KEY)
        assert record is not None
        assert record.in_progress()
        admin.config_set("maxmemory", "0")
        assert one.store.complete(lease, ANSWER, retention_ms=RETENTION_MS)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("ending", [Ending.SUCCEEDED, Ending.NOTHING_DONE], ids=["complete", "release"])
def test_a_password_that_is_wrong_for_a_moment_costs_no_result(
    private_redis: RedisServer, face: str, ending: Ending
) -> None:
    """The work has run. A wrong setting is worth as many tries as a store that is away."""
    url = private_redis.url.replace("redis://", "redis://semel:first@")
    with redis.Redis.from_url(private_redis.url) as admin, ThreadPoolExecutor(1) as threads:
        admin.execute_command("ACL", "SETUSER", "semel", "on", ">first", "~*", "&*", "+@all")
        with opened(face, url) as one:
            decision = one.drive(acquire(KEY, FINGERPRINT, "a", Policy()))
            assert isinstance(decision, Run)
            admin.execute_command("ACL", "SETUSER", "semel", "resetpass", ">second")
            admin.execute_command("CLIENT", "KILL", "USER", "semel")
            result = ANSWER if ending is Ending.SUCCEEDED else None
            plan = settle(decision.lease, ending, result, Policy(), fingerprint=FINGERPRINT)
            settling = threads.submit(one.drive, plan)
            while not admin.acl_log():  # until the server has refused the login
                assert not settling.done(), settling.result()
            admin.execute_command("ACL", "SETUSER", "semel", "resetpass", ">first")
            assert settling.result(30) == (Stored() if result else Released())
            record = one.store.get(KEY)
            assert (None if record is None else record.result) == result


def test_a_lost_connection_is_unavailable_in_the_words_of_every_event_loop(private_redis: RedisServer) -> None:
    """uvloop, which uvicorn runs on, raises RuntimeError when a connection was lost just before it is written to."""

    async def cut_at_every_step() -> None:
        store = open_async_store(proxy.url)
        assert isinstance(store, AsyncWatchable)
        await store.claim(KEY, "f", owner="a", lease_ms=60_000, retention_ms=60_000, takeover=False)
        for number in range(60):
            asked = [asyncio.create_task(store.wait(KEY, owner="a", timeout_ms=5)), asyncio.create_task(store.get(KEY))]
            for _ in range(number % 12):
                await asyncio.sleep(0)
            proxy.cut()
            for each in asked:
                with suppress(StoreUnavailable):
                    await each
            with suppress(StoreUnavailable):
                await store.get(KEY)
        assert await store.get(KEY) is not None
        await store.close()

    with FaultProxy(private_redis.url) as proxy:
        uvloop.run(cut_at_every_step())


def test_the_documented_limit_a_failover_loses_what_redis_acknowledged(
    private_redis: RedisServer, ledger: Ledger
) -> None:
    """Not a promise that is kept but a limit that is shown: the second execution is real. See docs/guarantees.md."""
    with RedisServer() as replica, FaultProxy(private_redis.url) as link, opened("sync", private_redis.url) as old:
        follower: Any
        with redis.Redis.from_url(replica.url) as follower, redis.Redis.from_url(private_redis.url) as primary:
            primary.config_set("repl-diskless-sync-delay", 0)
            follower.replicaof("127.0.0.1", link.port)
            persist(lambda: synchronised(follower))
            assert execute(old, Key("fire", "s", "replicated"), "a", Policy(), ledger)[1] == Stored()
            persist(lambda: received(follower, 1))
            link.hold()
            assert execute(old, KEY, "a", Policy(), ledger)[1] == Stored()
            private_redis.kill()
            follower.replicaof("NO", "ONE")
        with opened("sync", replica.url) as new:
            decision, settlement = execute(new, KEY, "b", Policy(), ledger)
            assert isinstance(decision, Run), "Redis has become better than its documentation: so should ours"
            assert settlement == Stored()
            assert not isinstance(execute(new, Key("fire", "s", "replicated"), "b", Policy(), ledger)[0], Run)
        replica.kill()  # asked politely it would wait for its old primary
    assert ledger.effects() == {"key": 2, "replicated": 1}


def synchronised(follower: Any) -> None:
    if follower.info("replication")["master_link_status"] != "up":
        raise StoreUnavailable("not yet")


def received(follower: Any, keys: int) -> None:
    if follower.dbsize() < keys:
        raise StoreUnavailable("not yet")
