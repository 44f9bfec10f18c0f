"""How often, and for how long, a client repeats a request, as a user writes it."""

from __future__ import annotations

from dataclasses import dataclass

from semel.client.arguments import read_seconds
from semel.client.breaker import Breaker
from semel.client.budget import PROCESS_BUDGET, RetryBudget
from semel.core.retries import WAIT_MS_MAX, Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a request is sent again, and when. Times are in seconds.

    Only requests that are safe to repeat are: those with a key, and those with an idempotent method. The pause before a
    repeat is random, up to half a second at first; the bound doubles with each repeat, up to `pause_max`. What the
    server asks for with `Retry-After` comes on top, up to `retry_after_max`.
    """

    attempts: int = 8
    """How many times a request is sent at most, the first time included."""
    deadline: float = 120.0
    """After this time no attempt begins."""
    pause_max: float = 30.0
    """The longest pause between two attempts, without what the server asks for."""
    retry_after_max: float = 60.0
    """The longest wait that a server may ask for with `Retry-After`."""
    budget: RetryBudget | None = PROCESS_BUDGET
    """How many repeats this process may send to a service. By default all adapters share one; None is no bound."""
    breaker: Breaker | None = None
    """Gives a context manager for an origin, which each attempt is sent in. If entering it raises, nothing is sent."""

    def __post_init__(self) -> None:
        budget: object = self.budget
        if budget is not None and not isinstance(budget, RetryBudget):
            raise TypeError(f"budget must be a RetryBudget, or None for no bound, not {type(budget).__name__}")
        breaker: object = self.breaker
        if breaker is not None and not callable(breaker):
            raise TypeError(f"breaker must be a function from an origin to a context manager, not {breaker!r}")
        for field in ("deadline", "pause_max", "retry_after_max"):
            read_seconds(getattr(self, field), field, WAIT_MS_MAX / 1_000)
        _ = self.backoff

    @property
    def backoff(self) -> Backoff:
        """The same numbers as the plan takes them."""
        return Backoff(
            attempts=self.attempts,
            deadline_ms=int(1_000 * self.deadline),
            pause_ms_max=int(1_000 * self.pause_max),
            retry_after_ms_max=int(1_000 * self.retry_after_max),
        )
