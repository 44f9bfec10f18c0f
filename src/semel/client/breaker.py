"""A circuit breaker around each attempt: any function that gives a context manager for an origin."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from semel.core.retries import TROUBLES, AttemptEnd
from semel.errors import CircuitOpen, Misuse, SemelError

Breaker = Callable[[str], AbstractContextManager[object]]
"""Gets an origin such as `https://api.example`. Entering its context manager raises if the circuit is open."""


class FailedAttempt(SemelError):
    """What a circuit breaker sees when an attempt failed in a way that speaks against the service; `end` says how.

    It is never raised to the caller, who gets the answer, or the error of the library.
    """

    def __init__(self, end: AttemptEnd) -> None:
        super().__init__(end.value)
        self.end = end


class Passage:
    """One attempt on its way through a breaker, which is told once how it ended."""

    def __init__(self, breaker: Breaker, origin: str, sent: int) -> None:
        """Enter, or raise `CircuitOpen`. `sent` says how many requests this call has sent before."""
        try:
            entered = breaker(origin)
            if isinstance(entered, AbstractContextManager):  # pyright: ignore[reportUnnecessaryIsInstance]
                entered.__enter__()
        except Exception as error:
            before = f" again, after {sent} before" if sent else ""
            raise CircuitOpen(
                f"the circuit breaker of {origin} is open, so no request was sent{before}; "
                f"an intent stays open in its journal ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(entered, AbstractContextManager):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Misuse(
                f"breaker= must give a context manager for an origin, used with a plain `with`, not {entered!r}"
            )
        self._entered: AbstractContextManager[object] | None = entered

    def end(self, end: AttemptEnd) -> None:
        self.leave(FailedAttempt(end) if end in TROUBLES else None)

    def leave(self, error: BaseException | None) -> None:
        """Leave once. A breaker may raise what it was told, or an error that says that it opens now: neither counts."""
        entered, self._entered = self._entered, None
        if entered is not None:
            with suppress(Exception):
                entered.__exit__(*((type(error), error, error.__traceback__) if error else (None, None, None)))
