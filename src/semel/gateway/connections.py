"""How many connections one worker has at once, to callers and to the upstream, and which of them gives way."""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass
from typing import Protocol

from semel.gateway.upstream import CONNECTIONS_MAX as UPSTREAM_MAX

logger = logging.getLogger("semel.gateway")
RESERVED = 64
"""File descriptors of a worker that are no connections of these: the store's, metrics, the event loop, modules."""
STALLED_S = 1.0
"""So long a caller has sent nothing of a begun body when its connection may give way to another one."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many connections a worker may open on each side."""

    callers: int
    upstream: int


def find_room(callers_max: int) -> Room:
    """Room for so many callers, or for as many as the limit on open files leaves.

    The limit is raised as far as the system lets this process do it. A process that has no descriptor left can accept
    nobody, so that callers would wait without an answer.
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


class Waiting(Protocol):
    """A connection whose caller is waited for."""

    def give_way(self) -> None:
        """Close, with a reason if the caller has begun a request."""


class CallerConnections:
    """The callers' connections that may give way to a new one when there are too many.

    First are those without a whole head, the longest waiting one before the others: nothing of their requests has run.
    Then come those whose body stands still. A request that has arrived never gives way.
    """

    def __init__(self, callers_max: int) -> None:
        self.callers_max = callers_max
        self.retiring = False
        """The worker finishes: whatever it answers from now on is the last answer on its connection."""
        self._heads: dict[Waiting, None] = {}
        self._bodies: dict[Waiting, float] = {}

    def await_head(self, connection: Waiting) -> None:
        """The caller has no request running: its connection is idle, or a head has begun."""
        self._bodies.pop(connection, None)
        self._heads.setdefault(connection)

    def await_body(self, connection: Waiting, now: float) -> None:
        """A part of a body has come, and another one is waited for."""
        self._heads.pop(connection, None)
        self._bodies.pop(connection, None)
        self._bodies[connection] = now

    def forget(self, connection: Waiting) -> None:
        """The connection waits for us, or is gone."""
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
