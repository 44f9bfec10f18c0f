"""`python -m fire.long.losses`: how many acknowledged claims a failover of Redis loses, with each way against it.

A claim counts as lost if it was granted, and another owner is granted the same key on the server that was promoted.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.crc import key_slot

from semel import Acquired, Key, StoreError, open_async_store, open_store
from semel.stores.redis.layout import frame, name_of
from semel.testing.proxy import FaultProxy
from servers.redis import RedisServer, ask_server, await_replicas
from servers.redis_cluster import ClusterNode, RedisCluster
from waiting import until

HELD_CLAIMS = 200
HELD_S = 4.0
"""The claims behind a held link are spread over so much time."""
CALLERS = 16
TRAFFIC_S = 1.0
TERMS: dict[str, Any] = {"lease_ms": 600_000, "retention_ms": 600_000, "takeover": False}
WAITING = "wait_replicas=1&wait_ms=100"


@dataclass(frozen=True)
class Loss:
    """What one setting lost."""

    setting: str
    failovers: int
    acknowledged: int
    lost: int


def key(name: object) -> Key:
    return Key("losses", "s", str(name))


def lose_held(setting: str, options: str, *config: Any) -> Loss:
    """The link to the replica is held: it is connected, and nothing comes through. Then the master is killed."""
    with RedisServer() as master, RedisServer() as replica, FaultProxy(master.url) as link:
        for name, value in (("repl-diskless-sync-delay", 0), *config):
            ask_server(master.port, "CONFIG", "SET", name, value)
        ask_server(replica.port, "REPLICAOF", "127.0.0.1", link.port)
        until(lambda: ask_server(replica.port, "ROLE")[3] == b"connected")
        until(lambda: ask_server(master.port, "ROLE")[2])
        with open_store(f"{master.url}?{options}") as store:  # type: ignore[attr-defined]
            until(lambda: is_granted(store, key("before"), "owner"))
            await_replicas(master.port)
            link.hold()
            granted = []
            for number in range(HELD_CLAIMS):
                if is_granted(store, key(number), "owner"):
                    granted.append(key(number))
                time.sleep(HELD_S / HELD_CLAIMS)
        master.kill()
        ask_server(replica.port, "REPLICAOF", "NO", "ONE")
        with open_store(replica.url) as promoted:  # type: ignore[attr-defined]
            lost = sum(is_granted(promoted, each, "other") for each in granted)
        replica.kill()
    return Loss(setting, 1, len(granted), lost)


def is_granted(store: Any, of: Key, owner: str) -> bool:
    try:
        return isinstance(store.claim(of, "f", owner=owner, **TERMS), Acquired)
    except StoreError:
        return False


def lose_killed(setting: str, options: str, failovers: int) -> Loss:
    """Nothing is held: a master of the cluster is killed under traffic, and its replica promoted at once."""
    acknowledged = lost = 0
    with RedisCluster() as cluster:
        for number in range(failovers):
            master = cluster.masters()[number % 3]
            slots = slots_of(master)
            fail_over = partial(cluster.fail_over, master)
            granted = asyncio.run(claim_until(f"{cluster.url}?{options}", f"{number}", fail_over))
            theirs = [each for each in granted if slot(each) in slots]
            with open_store(cluster.url) as store:  # type: ignore[attr-defined]
                lost += sum(is_granted(store, each, "other") for each in theirs)
            acknowledged += len(theirs)
            cluster.settle()
    return Loss(setting, failovers, acknowledged, lost)


def slots_of(master: ClusterNode) -> set[int]:
    parts = [part for part in master.ask("CLUSTER", "SLOTS") if int(part[2][1]) == master.port]
    return {slot for first, last, *_ in parts for slot in range(first, last + 1)}


def slot(of: Key) -> int:
    return int(key_slot(name_of(b"semel", frame(of))))


async def claim_until(url: str, prefix: str, failover: Callable[[], object]) -> list[Key]:
    """Claim keys with many callers until the failover is over. Returns what was granted before."""
    granted: list[Key] = []
    running = True

    async def caller(store: Any, number: int) -> None:
        count = 0
        while running:
            count += 1
            of = key(f"{prefix}-{number}-{count}")
            try:
                if isinstance(await store.claim(of, "f", owner="owner", **TERMS), Acquired):
                    granted.append(of)
            except StoreError:
                await asyncio.sleep(0.01)

    store = open_async_store(url)
    tasks = [asyncio.create_task(caller(store, number)) for number in range(CALLERS)]
    await asyncio.sleep(TRAFFIC_S)
    await asyncio.to_thread(failover)
    running = False
    await asyncio.gather(*tasks)
    await store.close()
    return granted


def main() -> None:
    parser = argparse.ArgumentParser(prog="fire.long.losses", description=__doc__)
    parser.add_argument("--failovers", type=int, default=5, help="of the cluster, for each setting")
    failovers = parser.parse_args().failovers
    lag = [("min-replicas-to-write", 1), ("min-replicas-max-lag", 1)]
    held, killed = "link held, then the master killed", "master of a cluster killed under traffic"
    losses = [
        lose_held(f"{held}: nothing", ""),
        lose_held(f"{held}: `min-replicas-to-write 1`, `min-replicas-max-lag 10`", "", lag[0]),
        lose_held(f"{held}: `min-replicas-to-write 1`, `min-replicas-max-lag 1`", "", *lag),
        lose_held(f"{held}: `wait_replicas=1`", WAITING),
        lose_killed(f"{killed}: nothing", "timeout_ms=2000", failovers),
        lose_killed(f"{killed}: `wait_replicas=1`", f"timeout_ms=2000&{WAITING}", failovers),
    ]
    print("| what happens, and the way against it | failovers | acknowledged | lost |\n|---|---|---|---|")
    for each in losses:
        print(f"| {each.setting} | {each.failovers} | {each.acknowledged:,} | {each.lost:,} |")


if __name__ == "__main__":
    main()
