"""Redis Sentinel: one master takes all writes, and the sentinels know which server that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.core.effects import Plan, do
from semel.errors import StoreError, StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.runtime.local import again
from semel.stores.redis.commands import Address, Command, Node, Unreached
from semel.stores.redis.failures import ours
from semel.stores.redis.route import ASK_S, NOT_NOW, PAUSES_S, Now, ServerExchange, ServerExchanges, Sleep
from semel.stores.redis.settings import RedisSettings

AGAIN_S = 0.25
"""How long the answer of the sentinels counts. A master that was replaced while it was well does not know of it: it
takes writes for ten seconds more, which are all lost, until the sentinels demote it."""


class Sentinel:
    """What a process knows of the master."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._sentinels = list(settings.seeds)
        self._master: Address | None = None
        self._asked_s = 0.0

    def send(self, commands: Sequence[Command]) -> Plan[list[Any]]:
        tries = 0
        while True:
            found = yield from self._try(tuple(commands))
            if not isinstance(found, StoreError):
                return found
            if not isinstance(found, Unreached):
                return [again(found) for _ in commands]
            pause_s = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
            tries += 1
            if not (yield from do(Sleep(pause_s))):
                return [StoreTimeout(str(found)) for _ in commands]

    def nodes(self) -> Plan[tuple[Node, ...]]:
        master = yield from self.door()
        return (Node(f"{master[0]}:{master[1]}", 1, master),)

    def door(self) -> Plan[Address]:
        """Always what the sentinels say: a listener comes here because its connection broke."""
        master = yield from self._find()
        if isinstance(master, StoreError):
            raise master
        return master

    def lane(self, name: bytes) -> object:
        return None

    def _try(self, commands: tuple[Command, ...]) -> Plan[list[Any] | StoreError]:
        """Ask the master once. `Unreached` if that did nothing for sure, so that the next one can be asked."""
        now_s = yield from do(Now())
        if now_s >= self._asked_s + AGAIN_S:
            self._asked_s = now_s
            yield from self._find()  # without an answer the known one is as good as it was
        master = self._master or (yield from self._find())
        if isinstance(master, StoreError):
            return master
        [found] = yield from do(ServerExchanges((ServerExchange(master, commands),)))
        if isinstance(found, StoreError):
            self._master = None
            return found
        refusal = next((each for reply in found for each in _parts(reply) if isinstance(each, NOT_NOW)), None)
        if refusal is not None:  # a replica, which cannot have written for any of them
            self._master = None
            return Unreached(str(ours(self._settings.at(master), refusal)))
        return [self._meaning(each) if isinstance(each, Exception) else each for each in found]

    def _find(self) -> Plan[Address | StoreError]:
        """Ask the sentinels for the master, first the one that answered last time."""
        command = (Command(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._settings.service)),)
        limit_s = min(ASK_S, self._settings.timeout_s / 2)
        failure: StoreError = StoreMisconfigured(
            f"{self._settings.shown}: no sentinel that answers knows the service {self._settings.service!r}"
        )
        for address in list(self._sentinels):
            [found] = yield from do(ServerExchanges((ServerExchange(address, command, limit_s, sentinel=True),)))
            if isinstance(found, StoreError):
                failure = Unreached(str(found)) if isinstance(found, StoreUnavailable) else found
            elif isinstance(found[0], Exception):
                failure = ours(self._settings.at(address, sentinel=True), found[0])
            elif found[0] is not None:
                host, port = found[0]
                self._sentinels.remove(address)
                self._sentinels.insert(0, address)
                self._master = (host.decode() or address[0], int(port))
                return self._master
        return failure

    def _meaning(self, error: Exception) -> StoreError:
        return error if isinstance(error, StoreError) else ours(self._settings, error)


def _parts(reply: Any) -> list[Any]:
    """The reply, or what a script answered to each of its calls."""
    return reply if isinstance(reply, list) else [reply]
