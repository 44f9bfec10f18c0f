"""How often a handler failed on a message: counted in the store, outside of the transaction that was rolled back."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from semel.core.effects import Effect
from semel.core.records import Key, check_duration, plain_text

ERROR_MAX = 1_000
"""How many characters of an error are kept."""


class CountAttempt(Effect[int], frozen=True):
    """Count one more failure of the message `key`; the reply is how many there are.

    A count is forgotten `retention_ms` after the last failure. It is not safe to repeat: a repeat counts again.
    """

    key: Key
    error: str
    retention_ms: int

    def checked(self) -> CountAttempt:
        """Itself, with an error that every store can keep."""
        return replace(
            self, error=kept_error(self.error), retention_ms=check_duration("retention_ms", self.retention_ms)
        )


class AttemptCount(Struct, frozen=True):
    """What a store keeps."""

    count: int
    expires_ms: int
    error: str
    """The last one, for an operator."""


def count_attempt(old: AttemptCount | None, call: CountAttempt, now_ms: int) -> AttemptCount:
    """What a store does, as a pure function: the new count, which is also the reply."""
    before = 0 if old is None or old.expires_ms <= now_ms else old.count
    return AttemptCount(before + 1, now_ms + call.retention_ms, call.error)


def kept_error(error: str) -> str:
    """As much of the error as is kept, without what a database refuses in text."""
    return plain_text("error", error).encode(errors="replace").decode().replace("\0", "")[:ERROR_MAX]
