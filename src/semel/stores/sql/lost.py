"""What the server may still be at work on, although the connection that asked for it was closed."""

from __future__ import annotations

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
