"""Names of operations for metrics: few, chosen by the user. A path or a key would make a series for each caller."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from semel.core.calls import origin_of
from semel.core.rules import MATCH, Rule

OTHER = "other"
OPERATIONS_MAX = 500
"""Every one of them is a time series for each kind of event."""


def check_origins(origins: Iterable[str]) -> Operations:
    """The services that callers send to: those of `origins` by their names, any other as `other`."""
    named = list(origins)
    for origin in named:
        if origin_of(origin) != origin:
            raise ValueError(
                f"origins= has {origin!r}: write the scheme, the host and a port that is not the usual one, "
                "such as https://api.example or http://localhost:8080"
            )
    return Operations(named)


class Operations:
    """Maps the scopes of keys to the first pattern that covers them, else to `other`.

    A pattern is one of a rule (`POST /payments/{id}/capture`), or a scope as it is (a function's or handler's name).
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        named = list(patterns)
        if len(named) > OPERATIONS_MAX:
            raise ValueError(
                f"operations= has {len(named)} patterns, the limit is {OPERATIONS_MAX}: use {{parameters}}"
            )
        self._exact = frozenset(named)
        self.names = (*dict.fromkeys(named), OTHER)
        """Every name that `name_of` may give."""
        self._rules = [(pattern, Rule(pattern)) for pattern in named if MATCH.fullmatch(pattern)]
        self.name_of = lru_cache(maxsize=4096)(self._name_of)

    def _name_of(self, scope: str) -> str:
        if scope in self._exact:
            return scope
        method, _, path = scope.partition(" ")
        if path.startswith("//"):  # where hosts are kept apart, the scope begins with one, and patterns have none
            path = f"/{path[2:].partition('/')[2]}"
        return next((pattern for pattern, rule in self._rules if rule.covers(method, path)), OTHER)
