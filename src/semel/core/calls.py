"""Events about what a caller sends: one for each attempt, and one at the end of each call."""

from __future__ import annotations

from urllib.parse import urlsplit

from semel.core.events import NO_KEY, Event
from semel.core.records import Key, Member

PORTS = {"http": 80, "https": 443}


class CallConclusion(Member):
    """How a call ended."""

    ANSWERED = "the service answered"
    REPLAYED = "the service answered with what it had stored"
    JOURNAL = "the journal had the answer: nothing was sent"
    UNDECIDED = "nothing tells how the operation ended: asking again sends it again"
    DOUBTFUL = "whether it took effect is unknown: a person decides"
    REFUSED = "the journal does not allow to send it"
    INTERRUPTED = "an error or a cancellation ended the call"


class CallEvent(Event, frozen=True, kw_only=True):
    """The key's scope is the method and the origin, its name is the key that was sent.

    `attempt` is the number of the attempt, and at the end how many requests were sent. `ran_ms` is how long it took.
    `detail` is the status, or the class of the error. No path, header or body is in it.
    """

    origin: str
    dialect: str
    intent: str = ""
    outcome: str
    """Of an attempt the name of its `AttemptEnd`, of a call that of its `CallConclusion`, both in lower case."""
    reason: str = ""
    """Why a call has no answer that tells how the operation ended, or why an attempt is not repeated."""
    pause_ms: int = 0
    """How long the caller waits before the next attempt."""

    def _compared_fields(self) -> tuple[object, ...]:
        return *super()._compared_fields(), self.outcome, self.reason

    def fields(self) -> dict[str, str | int]:
        """The fields to log, by name, without empty ones. The key is there only as a digest."""
        told: dict[str, str | int] = {
            "intent": self.intent,
            "dialect": self.dialect,
            "outcome": self.outcome,
            "reason": self.reason,
            "pause_ms": self.pause_ms,
        }
        return super().fields() | {name: value for name, value in told.items() if value}


def call_key(method: str, origin: str, name: str) -> Key:
    """The key of an event. A call whose key is not known, or is refused because no key is like that, has none."""
    try:
        return Key("", f"{method} {origin}", name or NO_KEY.name)
    except ValueError:
        return NO_KEY


def origin_of(url: str) -> str:
    """The scheme, host and port of a URL: `https://api.example`. Nothing else of a URL is for logs and metrics."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    host = parts.hostname or ""
    named = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{named}" + ("" if port in (None, PORTS.get(parts.scheme)) else f":{port}")
