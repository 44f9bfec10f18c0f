"""What the server may still carry out although its caller was told that it failed.

No connection sees a commit that waits for a synchronous standby. It takes place when the standby is back. A server that
stood still carries out what it finds in its sockets. Both have ended when the processes that were at work then, and the
transactions that were open then, are gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.core.effects import Doubts, do
from semel.stores.postgres import queries
from semel.stores.sql.lost import LostBackends
from semel.stores.sql.statements import Script, Statement


def doubts(table: str, calls: Sequence[Doubts], lost: LostBackends) -> Script[list[frozenset[str]]]:
    """Answer calls together, in one statement, or without one when no connection was lost."""
    known = lost.names()
    named = known.union(*(call.before for call in calls if call.before is not None))
    everything = lost.has_unnamed and any(call.before is None for call in calls)
    if not (named or everything):
        return [frozenset() for _ in calls]
    names = list(named) or [""]  # how arrays are sent here needs an item
    rows = yield from do(Statement(queries.doubts(table), (names, everything)))
    alive = frozenset(name for (name,) in rows)
    lost.forget(known - alive - {name.partition("@")[0] for name in alive})
    return [alive if call.before is None else alive & call.before for call in calls]
