"""The servers behind one URL: a single one is asked at once, several by way of their route.

Each server is checked on its first use (`check`), also one that was promoted or added later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from semel.core.effects import Effect
from semel.errors import StoreError
from semel.runtime.drive import adrive, drive
from semel.runtime.local import AsyncOnce, Once
from semel.stores.redis.check import check
from semel.stores.redis.cluster import Cluster
from semel.stores.redis.commands import Address, Command, Node, Nodes, Together
from semel.stores.redis.driver import AsyncRedisConnections, RedisConnections
from semel.stores.redis.failures import ours
from semel.stores.redis.route import Now, Route, ServerExchange, ServerExchanges, Sleep
from semel.stores.redis.sentinel import Sentinel
from semel.stores.redis.settings import RedisSettings, Topology
from semel.stores.redis.slots import slot_of
from semel.stores.redis.spread import SlotOf, one_slot

T = TypeVar("T")
ALONE = (Node("", 1, None),)
"""The nodes of a single server."""


def route_of(settings: RedisSettings) -> Route | None:
    match settings.topology:
        case Topology.SINGLE:
            return None
        case Topology.CLUSTER:
            return Cluster(settings)
        case Topology.SENTINEL:
            return Sentinel(settings)


def slots_of(settings: RedisSettings) -> SlotOf:
    return slot_of if settings.topology is Topology.CLUSTER else one_slot


class RedisServer:
    """One server, for threads."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._checked = Once()
        self.connections = RedisConnections(settings)

    def exchange(self, commands: Sequence[Command], due_s: float) -> list[Any]:
        if not self._checked.done and not self._settings.asks_sentinel:
            self._checked.do(lambda: drive(check(self._settings), partial(self.ask, due_s)))
        return self.connections.exchange(commands, due_s)

    def ask(self, due_s: float, effect: Effect[Any]) -> Any:
        """Ask without the check."""
        assert isinstance(effect, Command)
        return _settled(self._settings, self.connections.exchange((effect,), due_s)[0])


class RedisServers:
    """All of them, for threads."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self.route = route_of(settings)
        self._servers: dict[tuple[Address | None, bool], RedisServer] = {}

    def perform(self, effect: Effect[Any], due_s: float) -> Any:
        """What a plan of a script asks for."""
        if self.route is None:
            if isinstance(effect, Nodes):
                return ALONE
            assert isinstance(effect, Command)
            return _settled(self._settings, self._at(None).exchange((effect,), due_s)[0])
        answer = partial(self._answer, due_s)
        if isinstance(effect, Nodes):
            return drive(self.route.nodes(), answer)
        if isinstance(effect, Together):
            return drive(self.route.send(effect.commands), answer)
        assert isinstance(effect, Command)
        return _settled(self._settings, drive(self.route.send((effect,)), answer)[0])

    def look_at(self, node: Node, effect: Effect[Any], due_s: float) -> Any:
        """Ask one server as it is: it is not checked, because a check would refuse what is to be shown."""
        return self._at(node.address).ask(due_s, effect)

    def make_listening(self, due_s: float) -> Any:
        """A connection, not connected yet, to a server that tells of all changes."""
        address = None if self.route is None else drive(self.route.door(), partial(self._answer, due_s))
        return self._at(address).connections.make()

    def close(self) -> None:
        for server in list(self._servers.values()):
            server.connections.close()

    def _at(self, address: Address | None, *, sentinel: bool = False) -> RedisServer:
        server = self._servers.get((address, sentinel))
        if server is None:
            settings = self._settings if address is None else self._settings.at(address, sentinel=sentinel)
            server = self._servers.setdefault((address, sentinel), RedisServer(settings))
        return server

    def _answer(self, due_s: float, effect: Effect[Any]) -> Any:
        """What a plan of the route asks for."""
        if isinstance(effect, ServerExchanges):
            return [self._exchange(due_s, each) for each in effect.exchanges]
        if isinstance(effect, Now):
            return time.monotonic()
        assert isinstance(effect, Sleep)
        if time.monotonic() + effect.pause_s >= due_s:
            return False
        time.sleep(effect.pause_s)
        return True

    def _exchange(self, due_s: float, one: ServerExchange) -> list[Any] | StoreError:
        due_s = due_s if one.limit_s is None else min(due_s, time.monotonic() + one.limit_s)
        try:
            return self._at(one.address, sentinel=one.sentinel).exchange(one.commands, due_s)
        except StoreError as error:
            return error


class AsyncRedisServer:
    """One server, for the tasks of one event loop."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._checked = AsyncOnce()
        self.connections = AsyncRedisConnections(settings)

    async def exchange(self, commands: Sequence[Command], due_s: float) -> list[Any]:
        if not self._checked.done and not self._settings.asks_sentinel:
            await self._checked.do(lambda: adrive(check(self._settings), partial(self._ask, due_s)))
        return await self.connections.exchange(commands, due_s)

    async def _ask(self, due_s: float, effect: Effect[Any]) -> Any:
        assert isinstance(effect, Command)
        return _settled(self._settings, (await self.connections.exchange((effect,), due_s))[0])


class AsyncRedisServers:
    """All of them, for the tasks of one event loop."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self.route = route_of(settings)
        self._servers: dict[tuple[Address | None, bool], AsyncRedisServer] = {}

    async def perform(self, effect: Effect[Any]) -> Any:
        """What a plan of a script asks for. Each of its steps has the time of a call."""
        due_s = asyncio.get_running_loop().time() + self._settings.timeout_s
        if self.route is None:
            if isinstance(effect, Nodes):
                return ALONE
            assert isinstance(effect, Command)
            return _settled(self._settings, (await self._at(None).exchange((effect,), due_s))[0])
        answer = partial(self._answer, due_s)
        if isinstance(effect, Nodes):
            return await adrive(self.route.nodes(), answer)
        if isinstance(effect, Together):
            return await adrive(self.route.send(effect.commands), answer)
        assert isinstance(effect, Command)
        return _settled(self._settings, (await adrive(self.route.send((effect,)), answer))[0])

    async def make_listening(self) -> Any:
        """A connection, not connected yet, to a server that tells of all changes."""
        due_s = asyncio.get_running_loop().time() + self._settings.timeout_s
        address = None if self.route is None else await adrive(self.route.door(), partial(self._answer, due_s))
        return self._at(address).connections.make()

    async def close(self) -> None:
        for server in self._servers.values():
            await server.connections.close()

    def _at(self, address: Address | None, *, sentinel: bool = False) -> AsyncRedisServer:
        server = self._servers.get((address, sentinel))
        if server is None:
            settings = self._settings if address is None else self._settings.at(address, sentinel=sentinel)
            server = self._servers[address, sentinel] = AsyncRedisServer(settings)
        return server

    async def _answer(self, due_s: float, effect: Effect[Any]) -> Any:
        """What a plan of the route asks for."""
        if isinstance(effect, ServerExchanges):
            parts = effect.exchanges
            if len(parts) == 1:
                return [await self._exchange(due_s, parts[0])]
            return await asyncio.gather(*(self._exchange(due_s, each) for each in parts))
        if isinstance(effect, Now):
            return asyncio.get_running_loop().time()
        assert isinstance(effect, Sleep)
        if asyncio.get_running_loop().time() + effect.pause_s >= due_s:
            return False
        await asyncio.sleep(effect.pause_s)
        return True

    async def _exchange(self, due_s: float, one: ServerExchange) -> list[Any] | StoreError:
        if one.limit_s is not None:
            due_s = min(due_s, asyncio.get_running_loop().time() + one.limit_s)
        try:
            return await self._at(one.address, sentinel=one.sentinel).exchange(one.commands, due_s)
        except StoreError as error:
            return error


def _settled(settings: RedisSettings, reply: Any) -> Any:
    """The reply, unless it is a failure."""
    if isinstance(reply, Exception):
        raise reply if isinstance(reply, StoreError) else ours(settings, reply)
    return reply
