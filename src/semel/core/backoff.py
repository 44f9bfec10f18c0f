"""How long to pause between tries, as plain numbers."""

from __future__ import annotations

from collections.abc import Iterator


def pauses_ms(*, budget_ms: int, first_ms: int = 50, pause_ms_max: int = 2_000) -> Iterator[int]:
    """Doubling pauses whose sum never exceeds `budget_ms`."""
    pause_ms = first_ms
    while budget_ms >= pause_ms:
        yield pause_ms
        budget_ms -= pause_ms
        pause_ms = min(2 * pause_ms, pause_ms_max)
