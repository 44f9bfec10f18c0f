"""The matrix on a node of a Redis Cluster, and what a failover loses: with a held replication link, and with each way
against it.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from fire.cases import FACES, Ledger, Opened, Place, execute, opened, persist
from fire.test_matrix import ACTED, AT_ONCE, CALLS, Call, check_call, check_claim
from semel import Key, Policy, StoreUnavailable
from semel.core.decisions import Run, Stored
from semel.testing.proxy import Fault, FaultProxy
from servers.needing import needed
from servers.redis import RedisServer, ask_server, await_replicas
from servers.redis_cluster import ClusterNode

SHORT_MS = 500


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A node that has all slots, and says that it is where the proxy is. A plain URL goes around the proxy."""
    with needed("redis", ClusterNode) as node, FaultProxy(node.url) as proxy:
        ask_server(node.port, "CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        ask_server(node.port, "CONFIG", "SET", "cluster-announce-port", proxy.port)
        around = Place(node.url, proxy)
        persist(lambda: around.around.get(Key("fire", "s", "ready")))
        yield around
        around.around.close()


def url_of(place: Place, **options: int) -> str:
    given = "&".join(f"{name}={value}" for name, value in options.items())
    return f"redis+cluster://127.0.0.1:{place.proxy.port}?{given}"


@pytest.fixture(scope="module", params=FACES)
def one(place: Place, request: pytest.FixtureRequest) -> Iterator[Opened]:
    with opened(request.param, url_of(place)) as one:
        yield one


@pytest.fixture(scope="module", params=FACES)
def hasty(place: Place, request: pytest.FixtureRequest) -> Iterator[Opened]:
    with opened(request.param, url_of(place, timeout_ms=SHORT_MS)) as one:
        yield one


@pytest.mark.parametrize("fault", AT_ONCE, ids=lambda fault: fault.name.lower())
def test_a_claim_on_a_cluster_that_fails(fault: Fault, one: Opened, place: Place, key: Key) -> None:
    check_claim(fault, one, place, key)


@pytest.mark.parametrize("fault", AT_ONCE, ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_call_on_a_cluster_that_fails(call: Call, fault: Fault, one: Opened, place: Place, key: Key) -> None:
    check_call(call, fault, one, place, key)


@pytest.mark.parametrize("fault", [Fault.HOLD_REPLY, Fault.HOLD_REQUEST], ids=lambda fault: fault.name.lower())
def test_a_complete_on_a_cluster_that_is_not_answered(fault: Fault, hasty: Opened, place: Place, key: Key) -> None:
    assert fault in ACTED
    check_call(CALLS[1], fault, hasty, place, key)


@pytest.mark.parametrize(
    ("options", "effects"),
    [("", 2), ("?wait_replicas=1&wait_ms=100", 1)],
    ids=["without-waiting", "wait_replicas"],
)
def test_what_a_failover_with_a_held_link_does_to_a_key(
    private_redis: RedisServer, ledger: Ledger, options: str, effects: int
) -> None:
    """The limit that the docs print, and the way out: without the replica nothing is acknowledged, so nothing runs."""
    key = Key("fire", "s", "key")
    with RedisServer() as replica, FaultProxy(private_redis.url) as link:
        follower: Any
        with redis.Redis.from_url(replica.url) as follower:
            ask_server(private_redis.port, "CONFIG", "SET", "repl-diskless-sync-delay", 0)
            follower.replicaof("127.0.0.1", link.port)
            persist(lambda: synchronised(follower))
            with opened("sync", private_redis.url + options) as old:
                assert execute(old, Key("fire", "s", "replicated"), "a", Policy(), ledger)[1] == Stored()
                await_replicas(private_redis.port)
                link.hold()
                try:
                    ran = isinstance(execute(old, key, "a", Policy(), ledger)[0], Run)
                except StoreUnavailable:
                    ran = False
                assert ran is (effects == 2)
            private_redis.kill()
            follower.replicaof("NO", "ONE")
        with opened("sync", replica.url) as new:
            assert new.store.get(Key("fire", "s", "replicated")) is not None
            assert isinstance(execute(new, key, "b", Policy(), ledger)[0], Run)
        replica.kill()
    assert ledger.effects() == {"key": effects, "replicated": 1}


def synchronised(follower: Any) -> None:
    if follower.info("replication")["master_link_status"] != "up":
        raise StoreUnavailable("not yet")
