"""The engines: where the store is, how to kill a part of it, and how to bring that back."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Self

from servers.dynalite import DynaliteServer
from servers.mariadb import MariadbServer
from servers.moto import REGION
from servers.postgres import PostgresServer
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


class OneServerEngine(Engine):
    """One server that keeps what it acknowledged, killed and started again. `open_url` gives its store's URL."""

    def __init__(self, what: str, server: Server, open_url: Callable[[], str]) -> None:
        self._what, self._server, self._open_url = what, server, open_url
        self._url = ""

    @property
    def url(self) -> str:
        return self._url

    def kill(self, chance: random.Random) -> str:
        self._server.kill()
        return f"{self._what} killed (SIGKILL)"

    def restart(self) -> None:
        self._server.start()

    def __enter__(self) -> Self:
        self._server.start()
        self._url = self._open_url()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()


def mariadb() -> Engine:
    server = MariadbServer()
    return OneServerEngine("MariaDB", server, lambda: f"{server.create_database('fire')}?{TIMEOUT}")


def postgres() -> Engine:
    server = PostgresServer()
    return OneServerEngine("PostgreSQL", server, lambda: f"{server.create_database('fire')}?{TIMEOUT}")


def dynamodb() -> Engine:
    """dynalite on LevelDB files. Any credentials will do, and the service processes have them from this one."""
    os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing")
    folder = Path(tempfile.mkdtemp(prefix="semel-dynalite-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    server = DynaliteServer(folder)
    return OneServerEngine("dynalite", server, lambda: f"dynamodb://{REGION}/fire?endpoint_url={server.url}&{TIMEOUT}")


ENGINES: dict[str, Callable[[], Engine]] = {
    "redis-cluster": lambda: RedisClusterEngine(f"{TIMEOUT}&{CONFIRMED}"),
    "redis-cluster-unconfirmed": lambda: RedisClusterEngine(TIMEOUT),
    "mariadb": mariadb,
    "postgres": postgres,
    "dynamodb": dynamodb,
    "redis-sentinel": lambda: RedisSentinelEngine(f"{TIMEOUT}&wait_replicas=2&wait_ms=500"),
}
"""With `unconfirmed` a failover may lose what was acknowledged: that run counts what it does lose."""
