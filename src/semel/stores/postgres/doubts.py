"""What the server may still carry out although its caller was told that it failed.

No connection sees a commit that waits for a synchronous standby. It takes place when the standby is back. A server that
stood still carries out what it finds in its sockets. Both have ended when the processes that were at work then, and the
transactions that were open then, are gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.core.effects import Doubts, do
from semel.stores.postgres import queries
from semel.stores.sql.statements import Script, Statement

LOST_MAX = 1_000


class LostBackends:
    """Processes of the server that may still be at work on what was asked on a connection that was closed meanwhile."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        """With the time of their start, or their numbers alone, where asking for that would be one statement more."""
        self.has_unnamed = False
        """Behind a pooler no process is known by its name: there every transaction that is open may be meant."""

    def add(self, name: str) -> None:
        self.has_unnamed |= not name
        if name:
            self._names[name] = None
            if len(self._names) > LOST_MAX:
                self._names.pop(next(iter(self._names)), None)

    def names(self) -> frozenset[str]:
        return frozenset(list(self._names))

    def forget(self, ended: frozenset[str]) -> None:
        for name in ended:
            self._names.pop(name, None)


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
