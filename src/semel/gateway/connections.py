"""How many connections one worker has at once, to callers and to the upstream, and which of them gives way."""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass
from typing import Protocol

from semel.gateway.upstream import CONNECTIONS_MAX as UPSTREAM_MAX

logger = logging.getLogger("semel.gateway")
RESERVED = 64
"""File descriptors that a worker needs for other things: the store, metrics, the event loop, modules."""
STALLED_S = 1.0
"""A connection may give way when nothing of a begun body has arrived for so long."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many connections a worker may open on each side."""

    callers: int
    upstream: int


def find_room(callers_max: int) -> Room:
    """Room for so many callers, or for as many as the limit on open files leaves.

    The limit is raised as far as the system allows. A process without a free descriptor cannot accept a connection, so
    callers would wait without an answer.
    """
    wanted = callers_max + UPSTREAM_MAX + RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError) as error:  # some systems have a lower limit than they say
            logger.debug("the limit on open files stays at %d: %s", soft, error)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return Room(callers_max, UPSTREAM_MAX)
    callers = min(callers_max, max(1, (soft - RESERVED) // 2))
    room = Room(callers, min(UPSTREAM_MAX, max(1, soft - RESERVED - callers)))
    if callers < callers_max:
        logger.warning(
            "the limit on open files is %d, so a worker takes %d connections at once and not %d: raise the limit "
            "(ulimit -n, LimitNOFILE=) to %d, or give --connections-max %d",
            *(soft, callers, callers_max, wanted, callers),
        )
    return room


class WaitingConnection(Protocol):
    """A connection on which the gateway waits for the caller."""

    def give_way(self) -> None:
        """Close, with a reason if the caller has begun a request."""


class CallerConnections:
    """The callers' connections that may give way to a new one when there are too many.

    The first to give way are connections without a complete head, the longest waiting one first: no part of their
    requests has run. The next are those whose body has stopped arriving. A request that has arrived never gives way.
    """

    def __init__(self, callers_max: int) -> None:
        self.callers_max = callers_max
        self.retiring = False
        """The worker finishes: its next answer on each connection is the last one."""
        self._heads: dict[WaitingConnection, None] = {}
        self._bodies: dict[WaitingConnection, float] = {}

    def await_head(self, connection: WaitingConnection) -> None:
        """The caller has no request running: its connection is idle, or a head has begun."""
        self._bodies.pop(connection, None)
        self._heads.setdefault(connection)

    def await_body(self, connection: WaitingConnection, now: float) -> None:
        """A part of a body has arrived, and the gateway waits for the next."""
        self._heads.pop(connection, None)
        self._bodies.pop(connection, None)
        self._bodies[connection] = now

    def forget(self, connection: WaitingConnection) -> None:
        """The caller waits for the gateway, or the connection is gone."""
        self._heads.pop(connection, None)
        self._bodies.pop(connection, None)

    def make_room(self, now: float) -> bool:
        """Close the connection that gives way. False when there is none."""
        found = next(iter(self._heads), None)
        if found is None:
            found, since = next(iter(self._bodies.items()), (None, now))
            if found is None or now - since < STALLED_S:
                return False
        self.forget(found)
        found.give_way()
        return True
