"""Redis Cluster: each record is on the node that has its slot, and slots move."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from redis import exceptions

from semel.core.effects import Plan, do
from semel.errors import StoreError, StoreMisconfigured, StoreTimeout, StoreUnavailable
from semel.runtime.local import again
from semel.stores.redis.commands import Address, Command, Node, Unreached
from semel.stores.redis.failures import ours
from semel.stores.redis.route import ASK_S, NOT_NOW, PAUSES_S, ServerExchange, ServerExchanges, Sleep
from semel.stores.redis.settings import RedisSettings
from semel.stores.redis.slots import SlotMap, slot_of

MOVED_MAX = 16
"""After so many moved slots ask for all: more of them moved than a few."""
HOPS_MAX = 5
"""A command that was sent from node to node so often rests before it goes on: the nodes do not agree yet."""
ASKING = Command(("ASKING",))


class Sending:
    """Commands on their way, and what came back."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.replies: list[Any] = [None] * len(commands)
        self.waiting = list(range(len(commands)))
        self.asked: dict[int, Address] = {}
        """Where a node said to ask just this once."""
        self.refusal: StoreError | None = None
        """Why something waits for the next try and a pause."""

    def end(self, index: int, reply: Any) -> None:
        self.replies[index] = reply
        self.waiting.remove(index)

    def give_up(self, why: StoreError) -> None:
        for index in list(self.waiting):
            self.end(index, again(why))


class Cluster:
    """What a process knows of the nodes."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._slots = SlotMap()
        self._stale = True
        self._doors = random.randrange(1_000)
        """Listeners spread over the nodes, and try another one each time."""

    def send(self, commands: Sequence[Command]) -> Plan[list[Any]]:
        sending, tries, hops = Sending(commands), 0, 0
        while sending.waiting:
            sending.refusal = None
            if self._stale:
                sending.refusal = yield from self._learn()
            exchanges = self._sort(sending)
            if isinstance(sending.refusal, StoreMisconfigured):
                sending.give_up(sending.refusal)
            elif exchanges:
                parts = tuple(part for part, _ in exchanges)
                for (part, indexes), found in zip(exchanges, (yield from do(ServerExchanges(parts))), strict=True):
                    self._note(sending, part, indexes, found)
            hops += 1
            if sending.waiting and (sending.refusal is not None or hops > HOPS_MAX):
                pause_s = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
                tries += 1
                if not (yield from do(Sleep(pause_s))):
                    why = sending.refusal or StoreUnavailable(f"{self._settings.shown}: the nodes do not agree")
                    sending.give_up(StoreTimeout(str(why)))
        return sending.replies

    def nodes(self) -> Plan[tuple[Node, ...]]:
        """An operator is shown everything or told that it is not everything."""
        tries = 0
        while True:
            failure = (yield from self._learn()) if self._stale else None
            missing = self._slots.uncovered()
            if failure is None and not missing:
                return self._slots.nodes()
            self._stale = True
            failure = failure or StoreUnavailable(f"{self._settings.shown}: {missing} slots have no node")
            pause_s = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
            tries += 1
            if not (yield from do(Sleep(pause_s))):
                raise failure

    def door(self) -> Plan[Address]:
        self._doors += 1
        if self._doors % 2 or self._stale:
            failure = yield from self._learn()
            if failure is not None:
                raise failure
        masters = self._slots.masters()
        return masters[self._doors % len(masters)]

    def lane(self, name: bytes) -> object:
        return self._slots.owner(slot_of(name))

    def _learn(self) -> Plan[StoreError | None]:
        """Ask a node for the map. The nodes of the URL are asked last: some may be gone for good."""
        known = self._slots.masters()
        random.shuffle(known)
        command = (Command(("CLUSTER", "SLOTS")),)
        limit_s = min(ASK_S, self._settings.timeout_s / 2)
        failure: StoreError | None = None
        for address in dict.fromkeys((*known, *self._settings.seeds)):
            [found] = yield from do(ServerExchanges((ServerExchange(address, command, limit_s),)))
            if isinstance(found, StoreError):
                failure = found
            elif isinstance(found[0], Exception):
                failure = self._meaning(found[0])
            elif found[0]:
                self._slots = SlotMap.read(found[0], address)
                self._stale = False
                return None
            else:
                failure = StoreUnavailable(f"{self._settings.shown}: the node {address[0]}:{address[1]} knows no slots")
        return failure

    def _sort(self, sending: Sending) -> list[tuple[ServerExchange, list[int]]]:
        """What goes to which node now. -1 stands for a word that has no reply of interest."""
        by_node: dict[Address, tuple[list[Command], list[int]]] = {}
        for index in sending.waiting:
            command = sending.commands[index]
            address = sending.asked.get(index) or self._address(command)
            if address is None:
                self._stale = True
                sending.refusal = sending.refusal or StoreUnavailable(
                    f"{self._settings.shown}: no node serves slot {slot_of(command.key)}"
                )
                continue
            words, indexes = by_node.setdefault(address, ([], []))
            if index in sending.asked:
                words.append(ASKING)
                indexes.append(-1)
            words.append(command)
            indexes.append(index)
        sending.asked.clear()
        return [(ServerExchange(address, tuple(words)), indexes) for address, (words, indexes) in by_node.items()]

    def _address(self, command: Command) -> Address | None:
        if command.node is not None:
            return command.node
        if command.key:
            return self._slots.owner(slot_of(command.key))
        return next(iter(self._slots.masters()), None)

    def _note(self, sending: Sending, part: ServerExchange, indexes: list[int], found: Any) -> None:
        if isinstance(found, StoreError):
            self._stale = True
            for index in indexes:
                if index >= 0 and isinstance(found, Unreached) and sending.commands[index].node is None:
                    sending.refusal = found
                elif index >= 0:
                    sending.end(index, again(found))
            return
        for index, reply in zip(indexes, found, strict=True):
            if index >= 0:
                self._note_reply(sending, part, index, reply)

    def _note_reply(self, sending: Sending, part: ServerExchange, index: int, reply: Any) -> None:
        match reply:
            case exceptions.MovedError():
                self._slots.move(reply.slot_id, (reply.host or part.address[0], reply.port))
                self._stale = self._stale or self._slots.moved > MOVED_MAX
            case exceptions.AskError():
                sending.asked[index] = (reply.host or part.address[0], reply.port)
            case _ if isinstance(reply, NOT_NOW):
                self._stale = self._stale or not isinstance(reply, exceptions.TryAgainError)
                sending.refusal = ours(self._settings, reply)
            case Exception():
                sending.end(index, self._meaning(reply))
            case _:
                sending.end(index, reply)

    def _meaning(self, error: Exception) -> StoreError:
        if "cluster support disabled" in str(error):
            return StoreMisconfigured(
                f"{self._settings.shown} is no cluster: write redis:// without +cluster ({error})"
            )
        return error if isinstance(error, StoreError) else ours(self._settings, error)
