"""The deadline that a repeated call shares with the failed call before it: the caller has waited since then.

A store takes its deadline from here, and names it in its failures (`StoreUnavailable.due_ms`). The driver repeats the
call within that `shared_deadline`. A store that does neither gives every call its whole time.

All times are those of `time.monotonic`, which is also the clock of event loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from semel.errors import StoreUnavailable

SHARED_DUE_S: ContextVar[float | None] = ContextVar("semel_shared_due", default=None)
"""Tasks inherit it. A task that works for more than one caller must be created without it."""


@contextmanager
def shared_deadline(due_s: float) -> Iterator[None]:
    """The store must answer the calls in this block by `due_s`."""
    token = SHARED_DUE_S.set(due_s)
    try:
        yield
    finally:
        SHARED_DUE_S.reset(token)


def find_due_s(now_s: float, timeout_s: float) -> float:
    """The time by which a call that begins now must have its answer."""
    shared_s = SHARED_DUE_S.get()
    return now_s + timeout_s if shared_s is None else min(shared_s, now_s + timeout_s)


def tell_due(failure: StoreUnavailable, due_s: float) -> None:
    """Note in `failure` when its call was due, so that the caller can use the time that is left."""
    failure.due_ms = round(due_s * 1000)
