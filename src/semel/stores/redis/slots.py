"""Which node of a cluster has which slots, as the nodes say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from semel.stores.redis.commands import Address, Node

SLOTS = REDIS_CLUSTER_HASH_SLOTS
slot_of = key_slot


class SlotMap:
    """The owner of each slot. Threads share it: a slot changes in one step, and a new map replaces the old one."""

    def __init__(self, owners: Sequence[Address | None] = (None,) * SLOTS, names: dict[Address, str] | None = None):
        self._owners = list(owners)
        self._names = names or {}
        """The masters, and how the cluster calls them."""
        self._nodes: tuple[Node, ...] | None = None
        self.moved = 0
        """How many slots have a new owner since all of them were asked for."""

    @classmethod
    def read(cls, reply: Any, asked: Address) -> SlotMap:
        """Read the reply of `asked` to CLUSTER SLOTS. A node that does not know its own host leaves it empty."""
        owners: list[Address | None] = [None] * SLOTS
        names: dict[Address, str] = {}
        for first, last, master, *_ in reply:
            host, port, name, *_ = master
            address = (host.decode() if host else asked[0]), int(port)
            owners[first : last + 1] = [address] * (last + 1 - first)
            names[address] = name.decode()
        return cls(owners, names)

    def owner(self, slot: int) -> Address | None:
        return self._owners[slot]

    def move(self, slot: int, to: Address) -> None:
        self._owners[slot] = to
        self._names.setdefault(to, f"{to[0]}:{to[1]}")
        self._nodes = None
        self.moved += 1

    def masters(self) -> list[Address]:
        return list(self._names)

    def nodes(self) -> tuple[Node, ...]:
        """The masters that have slots."""
        if self._nodes is None:
            slots = dict.fromkeys(self._names, 0)
            for slot, owner in enumerate(self._owners):
                if owner is not None:
                    slots[owner] |= 1 << slot
            self._nodes = tuple(Node(self._names[each], slots[each], each) for each in slots if slots[each])
        return self._nodes

    def uncovered(self) -> int:
        """How many slots have no owner."""
        return self._owners.count(None)
