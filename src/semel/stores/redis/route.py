"""How the servers behind one URL are asked, as plans: which of them has the data, and what to do about a refusal.

A refusal by which the server says that it did nothing is followed within the time of the call. A connection that is
lost after something was sent is not: it may have happened, and the caller asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from redis import exceptions

from semel.core.effects import Effect, Plan
from semel.stores.redis.commands import Address, Command, Node

PAUSES_S = (0.0, 0.01, 0.02, 0.04, 0.08)
"""Between tries of a call that was refused: a failover takes seconds, a slot that moves takes milliseconds."""
ASK_S = 1.0
"""How long one server is waited for that is asked where the data is, before the next one is."""
NOT_NOW = (
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
)
"""Refusals that end by themselves. MASTERDOWN is a kind of CLUSTERDOWN."""


class ServerExchange(Effect[Any], frozen=True):
    """Commands for one server, sent in one piece."""

    address: Address
    commands: tuple[Command, ...]
    limit_s: float | None = None
    sentinel: bool = False


class ServerExchanges(Effect[list[Any]], frozen=True):
    """ServerExchanges at the same time. For each the replies, or the `StoreError` that it ended with."""

    exchanges: tuple[ServerExchange, ...]


class Sleep(Effect[bool], frozen=True):
    """Sleep. False if the time of the call is over before that."""

    pause_s: float


class Now(Effect[float], frozen=True):
    """Asks for the time of this process, in seconds, which never jumps."""


class Route(Protocol):
    """The servers of one topology."""

    def send(self, commands: Sequence[Command]) -> Plan[list[Any]]:
        """Ask the servers that the commands are for. For each its reply, or the `StoreError` that it ended with."""
        ...

    def nodes(self) -> Plan[tuple[Node, ...]]: ...

    def door(self) -> Plan[Address]:
        """A server that tells of all changes."""
        ...

    def lane(self, name: bytes) -> object:
        """Records with the same lane are on the same server, as far as is known."""
        ...
