"""How a request of a library without extensions names its intent: by a header that never leaves the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self

from semel.errors import Misuse

if TYPE_CHECKING:
    from semel.client.journal import Intent

HEADER = "Semel-Intent"


class IntentMark(str):
    """The value of the header: the adapter finds the intent in it, and takes the header out of what is sent.

    Without the adapter the request is not sent. No library can write these characters into a header.
    """

    __slots__ = ("intent",)

    intent: Intent

    def __new__(cls, intent: Intent) -> Self:
        mark = super().__new__(cls, f"\0\u2298 {intent.part.id.name!r} needs semel's adapter for this library")
        mark.intent = intent
        return mark

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> NoReturn:
        """What most libraries call to send a header."""
        raise Misuse(
            f"this request was not sent: intent.headers names the intent {self.intent.part.id.name!r} to an adapter of "
            "semel.client, and it does not go through one. Mount the IdempotentAdapter for this URL "
            '(requests), or use the IdempotentPoolManager (urllib3); with httpx write extensions={"semel": intent}'
        )
