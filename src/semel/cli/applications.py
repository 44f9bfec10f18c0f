"""Finds the store of an application: that of the semel middleware in it."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

OBJECTS_MAX = 200_000
"""How many objects of an application are searched. The middleware is near its surface."""


def store_of(app: object) -> Any | None:
    """The store of the outermost middleware, or None. Frameworks make it with the first request, so ask after one.

    Every framework keeps its middlewares in a place of its own, so all that the application holds is searched, from the
    outside to the inside.
    """
    waiting, seen = deque([app]), {id(app)}
    while waiting and len(seen) < OBJECTS_MAX:
        found = waiting.popleft()
        if type(found).__module__.startswith("semel.") and hasattr(found, "gate") and hasattr(found, "store"):
            return getattr(found, "store")  # noqa: B009
        for part in _parts(found):
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
    return None


def _parts(found: object) -> Iterable[object]:
    """What an object holds. Of a function only its closure counts: its module would lead to everything else."""
    if isinstance(found, ModuleType | type | str | bytes | int | float):
        return ()
    if isinstance(found, FunctionType):
        return (*(found.__closure__ or ()), getattr(found, "__wrapped__", None))
    return gc.get_referents(found)
