"""A master, its replicas and the sentinels that watch them, all on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import redis

from servers import binaries
from servers.process import Server
from servers.redis import RedisServer, ask_server
from waiting import until

SERVICE = "mymaster"
DOWN_AFTER_MS = 1_000
SETTLE_S = 120.0
"""The sentinels turn an old master that comes back into a replica after ten seconds, and repeat a vote after eight."""
QUICK = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", "--repl-timeout", "5")


class SentinelServer(Server):
    """One sentinel: a Redis server in a mode of its own."""

    def __init__(self, master: RedisServer, sentinels: int) -> None:
        self._program = binaries.require("redis")
        self._master = master
        self._quorum = sentinels // 2 + 1
        super().__init__()

    def prepare(self) -> None:
        lines = [
            f"sentinel monitor {SERVICE} 127.0.0.1 {self._master.port} {self._quorum}",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} 4000",
        ]
        (self.folder / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> Sequence[str | Path]:
        place = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder))
        return [self._program, self.folder / "sentinel.conf", "--sentinel", *place]

    def probe(self) -> None:
        self.ask("PING")

    def ask(self, *words: Any) -> Any:
        return ask_server(self.port, *words)


class RedisSentinels:
    """`servers` has all of them, whatever they are now."""

    def __init__(self, replicas: int = 2, sentinels: int = 3, *arguments: str) -> None:
        master = RedisServer(*QUICK, *arguments)
        follow = ("--replicaof", "127.0.0.1", str(master.port))
        self.servers = [master, *(RedisServer(*QUICK, *follow, *arguments) for _ in range(replicas))]
        self.sentinels = [SentinelServer(master, sentinels) for _ in range(sentinels)]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{each.port}' for each in self.sentinels)}/{SERVICE}"

    def __enter__(self) -> Self:
        try:
            for group in (self.servers[:1], self.servers[1:], self.sentinels):
                with ThreadPoolExecutor(len(group)) as threads:
                    list(threads.map(Server.start, group))
            self.settle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(_stop, (*self.sentinels, *self.servers)))

    def settle(self) -> None:
        """Wait until everything runs, the sentinels know it, and every replica follows the master."""
        for server in (*self.servers, *self.sentinels):
            server.revive()
        deadline = time.monotonic() + SETTLE_S
        while not self._is_settled():
            assert time.monotonic() < deadline, "the sentinels do not agree, or a replica does not follow"
            time.sleep(0.02)

    def _demote(self, master: RedisServer) -> None:
        """The sentinels would do it, after ten seconds."""
        for server in self.servers:
            if server is not master and ask_server(server.port, "ROLE")[0] == b"master":
                ask_server(server.port, "REPLICAOF", "127.0.0.1", master.port)

    def _is_settled(self) -> bool:
        master = self.master()
        states = [_pairs(each.ask("SENTINEL", "MASTER", SERVICE)) for each in self.sentinels]
        known = all(
            state["flags"] == "master"
            and int(state["port"]) == master.port
            and int(state["num-slaves"]) >= len(self.servers) - 1
            and int(state["num-other-sentinels"]) == len(self.sentinels) - 1
            for state in states
        )
        role = ask_server(master.port, "ROLE")
        if role[0] == b"master" and all(int(state["port"]) == master.port for state in states):
            self._demote(master)
        return known and role[0] == b"master" and len(role[2]) == len(self.servers) - 1

    def clear(self) -> None:
        self.settle()
        ask_server(self.master().port, "FLUSHALL")

    def master(self) -> RedisServer:
        """The one that the sentinels name."""
        _, port = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(server for server in self.servers if server.port == int(port))

    def fail_over(self) -> RedisServer:
        """Let the sentinels promote a replica, as if the master had failed; the old one stays and is demoted."""
        old = self.master()
        until(self._asked_for_failover)
        until(lambda: self.master() is not old and ask_server(self.master().port, "ROLE")[0] == b"master")
        return self.master()

    def _asked_for_failover(self) -> bool:
        try:
            return bool(self.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE))
        except redis.ResponseError:  # INPROG, or the replicas are not known yet
            return False


def _stop(server: Server) -> None:
    server.kill()
    server.stop()


def _pairs(found: list[bytes]) -> dict[str, str]:
    words = [word.decode() for word in found]
    return dict(zip(words[::2], words[1::2], strict=True))
