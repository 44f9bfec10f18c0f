"""Waiting for what another thread, process or server does."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 30.0


def until(ready: Callable[[], T], otherwise: str = "it did not happen in time") -> T:
    """Ask until the answer is not empty, and give it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := ready()):
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)
    return found
