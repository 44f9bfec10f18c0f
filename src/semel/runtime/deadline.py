"""The deadline that a call shares with the one before it, which failed: its caller has waited since then.

A store takes its deadline from here, and says in its failures when it is (`StoreUnavailable.due_ms`). The driver asks
again within that `shared_deadline`. A store that does neither gives every call its whole time.

All times are of the clock of `time.monotonic`, which is that of event loops, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from semel.errors import StoreUnavailable

SHARED_DUE_S: ContextVar[float | None] = ContextVar("semel_shared_due", default=None)
"""Tasks inherit it. A task that works for more than one caller must be made without it."""


@contextmanager
def shared_deadline(due_s: float) -> Iterator[None]:
    """Calls in this block must have been answered by `due_s`."""
    token = SHARED_DUE_S.set(due_s)
    try:
        yield
    finally:
        SHARED_DUE_S.reset(token)


def find_due_s(now_s: float, timeout_s: float) -> float:
    """When a call that begins now must have been answered."""
    shared_s = SHARED_DUE_S.get()
    return now_s + timeout_s if shared_s is None else min(shared_s, now_s + timeout_s)


def tell_due(failure: StoreUnavailable, due_s: float) -> None:
    """Let the caller know how long its call could still have taken."""
    failure.due_ms = round(due_s * 1000)
