"""A Redis Cluster of our own: masters that share the slots, each with its replicas, all on this machine."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from servers.process import free_port
from servers.redis import RedisServer, ask_server
from waiting import until

NODE_TIMEOUT_MS = 1_000
"""Long enough for a busy machine; a test that wants a failover at once asks for it (`promote`)."""
BUS = 10_000
"""The port of the cluster's bus is so much further on."""
CLIENTS_FROM = 32_768


class ClusterNode(RedisServer):
    """One of its servers."""

    def __init__(self, *arguments: str) -> None:
        quick = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", "--repl-timeout", "5")
        voting = ("--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--cluster-replica-validity-factor", "0")
        super().__init__("--cluster-enabled", "yes", *voting, *quick, *arguments)
        self.port = _free_pair()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def ask(self, *words: Any) -> Any:
        return ask_server(self.port, *words)

    def runs(self) -> bool:
        return self._process is not None

    @property
    def name(self) -> str:
        return str(self.ask("CLUSTER", "MYID").decode())

    def is_master(self) -> bool:
        return bool(self.ask("ROLE")[0] == b"master")


class RedisCluster:
    """Masters and replicas. `nodes` has all of them, whatever they are now."""

    def __init__(self, masters: int = 3, replicas: int = 1, *arguments: str) -> None:
        self._masters = masters
        self.nodes = [ClusterNode(*arguments) for _ in range(masters * (1 + replicas))]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes[: self._masters])}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(ClusterNode.stop, self.nodes))

    def _start(self) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(ClusterNode.start, self.nodes))
        first, masters = self.nodes[0], self.nodes[: self._masters]
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(masters):
            node.ask("CLUSTER", "ADDSLOTS", *_share(number, len(masters)))
        for node in self.nodes[1:]:
            first.ask("CLUSTER", "MEET", *node.address)
        until(lambda: all(self._knows_all(node) for node in self.nodes))
        for number, node in enumerate(self.nodes[self._masters :]):
            node.ask("CLUSTER", "REPLICATE", masters[number % len(masters)].name)
        self.settle()

    def settle(self) -> None:
        """Wait until every node runs, knows the others, and every replica follows its master."""
        for node in self.nodes:
            node.revive()
            self.mend_link(node)
        until(self._is_settled)

    def _is_settled(self) -> bool:
        return all(self._is_ready(node) for node in self.nodes)

    def _knows_all(self, node: ClusterNode) -> bool:
        return f"cluster_known_nodes:{len(self.nodes)}" in node.ask("CLUSTER", "INFO").decode()

    def _is_ready(self, node: ClusterNode) -> bool:
        try:
            role = node.ask("ROLE")
            lines = node.ask("CLUSTER", "NODES").decode().splitlines()
            info = node.ask("CLUSTER", "INFO").decode()
        except redis.RedisError:
            return False
        follows = role[0] == b"master" or role[3] == b"connected"
        replicas = role[0] != b"master" or len(role[2]) == len(self.nodes) // self._masters - 1
        calm = all("fail" not in line.split()[2] and "handshake" not in line for line in lines)
        seen = sum("slave" in line.split()[2] for line in lines) == len(self.nodes) - self._masters
        return follows and replicas and calm and seen and "cluster_state:ok" in info

    def clear(self) -> None:
        """Every node as at the beginning, and empty."""
        self.settle()
        for node in self.nodes:
            if node.is_master():
                node.ask("FLUSHALL")

    def owner(self, name: bytes | int) -> ClusterNode:
        """The master that has the slot of `name`."""
        slot = name if isinstance(name, int) else key_slot(name)
        for first, last, master, *_ in self._living().ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return self._at(int(master[1]))
        raise LookupError(f"no node serves slot {slot}")

    def replica_of(self, master: ClusterNode) -> ClusterNode:
        for _, _, found, *replicas in self._living().ask("CLUSTER", "SLOTS"):
            if int(found[1]) == master.port and replicas:
                return self._at(int(replicas[0][1]))
        raise LookupError(f"{master.port} has no replica")

    def masters(self) -> list[ClusterNode]:
        found = self._living().ask("CLUSTER", "SLOTS")
        return [self._at(port) for port in dict.fromkeys(int(master[1]) for _, _, master, *_ in found)]

    def promote(self, replica: ClusterNode, *, orderly: bool = False) -> None:
        """Make it the master: of itself, as after a vote, or in agreement with its master, which loses nothing."""
        replica.ask("CLUSTER", "FAILOVER", *(() if orderly else ("TAKEOVER",)))
        until(replica.is_master)

    def fail_over(self, master: ClusterNode) -> ClusterNode:
        """Kill a master and promote its replica at once, without the vote, which takes seconds."""
        replica = self.replica_of(master)
        master.kill()
        self.promote(replica)
        return replica

    def cut_link(self, master: ClusterNode) -> ClusterNode:
        """From now on its replica gets nothing from it, until `mend_link`."""
        replica = self.replica_of(master)
        replica.ask("CONFIG", "SET", "masteruser", "nobody", "masterauth", "wrong")
        master.ask("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: replica.ask("ROLE")[3] != b"connected")
        return replica

    def mend_link(self, replica: ClusterNode) -> None:
        replica.ask("CONFIG", "SET", "masteruser", "", "masterauth", "")

    def begin_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """From now on the source answers ASK for what it does not have in the slot."""
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.name)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.name)

    def move_keys(self, slot: int, source: ClusterNode, target: ClusterNode) -> int:
        names = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1_000)
        if names:
            source.ask("MIGRATE", *target.address, "", 0, 5_000, "KEYS", *names)
        return len(names)

    def end_move(self, slot: int, target: ClusterNode) -> None:
        name = target.name
        for node in (target, *(each for each in self.masters() if each is not target)):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", name)

    def _living(self) -> ClusterNode:
        for node in self.nodes:
            with contextlib.suppress(redis.RedisError):
                if node.ask("PING") and "cluster_state:ok" in node.ask("CLUSTER", "INFO").decode():
                    return node
        for node in self.nodes:
            with contextlib.suppress(redis.RedisError):
                if node.ask("PING"):
                    return node
        raise LookupError("no node answers")

    def _at(self, port: int) -> ClusterNode:
        return next(node for node in self.nodes if node.port == port)


def _share(number: int, masters: int) -> range:
    size = -(-SLOTS // masters)
    return range(number * size, min(SLOTS, (number + 1) * size))


def _free_pair() -> int:
    """Both are below the ports that the kernel gives to clients."""
    while True:
        port = free_port()
        if port + BUS >= CLIENTS_FROM:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port + BUS))
            return port
