"""What a user may choose about the file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, cast, get_args
from urllib.parse import unquote

from semel.errors import StoreMisconfigured
from semel.stores.url import StoreUrl

Synchronous = Literal["normal", "full"]
BUSY_TIMEOUT_MS_MAX = 600_000
TIMEOUT_MS_LEAST = 1_000
"""No call is given up earlier: also who does not want to wait for a lock waits for the disk and for a thread."""


@dataclass(frozen=True, slots=True)
class SqliteSettings:
    path: str
    synchronous: Synchronous = "normal"
    busy_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        if self.path in ("", ":memory:"):
            raise StoreMisconfigured(
                "a database in memory is not shared by threads and processes: use memory:// for a store that may forget"
            )
        if self.synchronous not in get_args(Synchronous):
            raise StoreMisconfigured(f"{self.path}: synchronous must be normal or full, not {self.synchronous!r}")
        if not 0 <= self.busy_timeout_ms <= BUSY_TIMEOUT_MS_MAX:
            raise StoreMisconfigured(
                f"{self.path}: busy_timeout_ms must be from 0 to {BUSY_TIMEOUT_MS_MAX}, not {self.busy_timeout_ms}"
            )
        object.__setattr__(self, "path", os.path.abspath(self.path))  # a later chdir must not mean another file

    @property
    def timeout_s(self) -> float:
        """How long a caller waits for everything: behind others, for the lock and for the disk."""
        return max(self.busy_timeout_ms, TIMEOUT_MS_LEAST) / 1000

    @property
    def late(self) -> str:
        return (
            f"{self.path}: no answer within {self.timeout_s:g} s: others of this process are waiting for its lock, or "
            "its disk does not answer"
        )

    @classmethod
    def of(cls, url: StoreUrl) -> SqliteSettings:
        if url.parts.netloc:
            raise StoreMisconfigured(
                f"{url.shown}: write sqlite:///relative.db or sqlite:////absolute.db, with three or four slashes"
            )
        if url.parts.fragment:
            raise StoreMisconfigured(f"{url.shown}: write %23 for a # in the name of the file")
        synchronous = cast(Synchronous, url.text_option("synchronous", "normal").lower())
        busy_timeout_ms = url.number("busy_timeout_ms", 5_000, least=0, most=BUSY_TIMEOUT_MS_MAX)
        return cls(unquote(url.parts.path)[1:], synchronous, busy_timeout_ms)
