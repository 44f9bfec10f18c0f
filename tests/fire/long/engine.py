"""The engines: where the store is, how to kill a part of it, and how to bring that back."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

from servers.process import Server
from servers.redis_cluster import RedisCluster
from servers.redis_sentinel import RedisSentinels

CONFIRMED = "wait_replicas=1&wait_ms=500"
TIMEOUT = "timeout_ms=1000"


class Engine(ABC):
    """Starts with the `with` block. `kill` and `restart` take turns."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Of the store, with its options."""

    @abstractmethod
    def kill(self, chance: random.Random) -> str:
        """kill -9 to one of its servers; says what that was."""

    @abstractmethod
    def restart(self) -> None:
        """Bring back what was killed, and wait until it could be killed again."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...


class RedisClusterEngine(Engine):
    """Three masters and three replicas. Only the nodes themselves decide who is promoted."""

    def __init__(self, options: str) -> None:
        self._options = options
        self._cluster = RedisCluster()

    @property
    def url(self) -> str:
        return f"{self._cluster.url}?{self._options}"

    def kill(self, chance: random.Random) -> str:
        chance.choice(self._cluster.masters()).kill()
        return "master of the cluster killed (SIGKILL)"

    def restart(self) -> None:
        self._cluster.settle()

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.__exit__()


class RedisSentinelEngine(Engine):
    """A master with two replicas, and three sentinels."""

    def __init__(self, options: str) -> None:
        self._options = options
        self._sentinels = RedisSentinels()

    @property
    def url(self) -> str:
        return f"{self._sentinels.url}?{self._options}"

    def kill(self, chance: random.Random) -> str:
        victims: list[tuple[Server, str]] = [(self._sentinels.master(), "master")] * 2
        victim, what = chance.choice([*victims, (chance.choice(self._sentinels.sentinels), "sentinel")])
        victim.kill()
        return f"{what} killed (SIGKILL)"

    def restart(self) -> None:
        self._sentinels.settle()

    def __enter__(self) -> Self:
        self._sentinels.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._sentinels.__exit__()


ENGINES: dict[str, Callable[[], Engine]] = {
    "redis-cluster": lambda: RedisClusterEngine(f"{TIMEOUT}&{CONFIRMED}"),
    "redis-cluster-unconfirmed": lambda: RedisClusterEngine(TIMEOUT),
    "redis-sentinel": lambda: RedisSentinelEngine(f"{TIMEOUT}&wait_replicas=2&wait_ms=500"),
}
"""With `unconfirmed` a failover may lose what was acknowledged: that run counts what it does lose."""
