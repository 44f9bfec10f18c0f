"""How many repeats a process may send to one service: a share of its first requests, so that no outage is multiplied.

Each service, which is an origin here, has a number of tokens. A first request adds a fraction of one, a repeat takes
one. With time the number goes back to `at_least`: up if repeats took from it, down if many requests added to it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from math import exp, isfinite

ORIGINS_MAX = 1_000
"""Beyond so many services, the budget of the one that was called least recently begins anew."""


class RetryBudget:
    """`Retry(budget=RetryBudget(ratio=0.1, at_least=50))` shares one budget among the adapters that have this object.

    In any time each service gets `ratio` repeats for each first request, and `at_least` in each `per` seconds, so that
    a process that sends little can repeat, too. Threads may share it. It waits for nothing.
    """

    def __init__(
        self,
        *,
        ratio: float = 0.1,
        at_least: float = 50,
        per: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for field, value, least, most in (
            ("ratio", ratio, 0, 10),
            ("at_least", at_least, 0, 1_000_000),
            ("per", per, 0.001, 86_400),
        ):
            number: object = value
            if not isinstance(number, int | float):
                raise TypeError(f"{field} must be a number, not {number!r}")
            if not isfinite(value) or not least <= value <= most:
                raise ValueError(f"{field} must be a number between {least} and {most}, not {value!r}")
        self._ratio, self._at_least, self._per, self._clock = ratio, at_least, per, clock
        self._lock = threading.Lock()
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """How many tokens each origin had, and when. The origin that was used last is the last."""

    def deposit(self, origin: str) -> None:
        """Count a first request."""
        with self._lock:
            self._set(origin, self._left(origin) + self._ratio)

    def withdraw(self, origin: str) -> bool:
        """Whether one more repeat may be sent. If so, it is counted."""
        with self._lock:
            left = self._left(origin)
            is_enough = left >= 1
            self._set(origin, left - is_enough)
            return is_enough

    def left(self, origin: str) -> float:
        """How many repeats `origin` may get now."""
        with self._lock:
            return self._left(origin)

    def _left(self, origin: str) -> float:
        tokens, then_s = self._tokens.get(origin, (self._at_least, 0.0))
        return self._at_least + (tokens - self._at_least) * exp((then_s - self._clock()) / self._per)

    def _set(self, origin: str, tokens: float) -> None:
        self._tokens[origin] = tokens, self._clock()
        self._tokens.move_to_end(origin)
        if len(self._tokens) > ORIGINS_MAX:
            self._tokens.popitem(last=False)


PROCESS_BUDGET = RetryBudget()
"""What every adapter of this process shares that is given no other."""
