"""A store's script is a plan whose effects are statements, so `drive` runs it on any connection: ours or the user's
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from semel.core.effects import Effect, Plan, T

Rows = Sequence[tuple[Any, ...]]


class Statement(Effect[Rows], frozen=True):
    """SQL in the engine's own placeholder style, with what fills it.

    The reply is the rows (empty when there are none).
    """

    sql: str
    params: Sequence[Any] | Mapping[str, Any] = ()


Script = Plan[T]
