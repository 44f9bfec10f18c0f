"""What the server may still carry out although its caller was told that it failed.

A server that stood still carries out what it finds in its sockets, and a commit may wait for a replica. Each connection
holds a lock with a name of its own. The server gives it back when its work for that connection has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.core.effects import Doubts, do
from semel.stores.mariadb.packets import literal, packet
from semel.stores.sql.lost import LostBackends
from semel.stores.sql.statements import Script


def doubts(calls: Sequence[Doubts], lost: LostBackends) -> Script[list[frozenset[str]]]:
    """Answer calls together, in one statement, or without one when no connection was lost."""
    known = lost.names()
    named = sorted(known.union(*(call.before for call in calls if call.before is not None)))
    if not named:
        return [frozenset() for _ in calls]
    asked = ", ".join(f"IS_USED_LOCK({literal(name)})" for name in named)
    [[holders]] = yield from do(packet(f"SELECT {asked}"))
    alive = frozenset(name for name, holder in zip(named, holders, strict=True) if holder is not None)
    lost.forget(known - alive)
    return [alive if call.before is None else alive & call.before for call in calls]
