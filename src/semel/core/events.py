"""Events: one frozen value for each decision about a key or a message, for logs, metrics and traces."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from semel.core.correlation import correlation_of
from semel.core.records import Key, Member, State

NO_KEY = Key("", "", "-")
"""The key of events that are not about a single key, so that every event has one."""


class EventKind(Member):
    CLAIMED = "claimed"
    TAKEN_OVER = "taken_over"
    REPLAYED = "replayed"
    IN_FLIGHT = "in_flight"
    MISMATCHED = "mismatched"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    UNREADABLE = "unreadable"
    REFUSED = "refused"
    COMPLETED = "completed"
    RELEASED = "released"
    LEFT = "left"
    SUPERSEDED = "superseded"
    NOT_STORED = "not_stored"
    LEASE_LOST = "lease_lost"
    STORE_FAILED = "store_failed"
    PURGED = "purged"
    MESSAGE_PUBLISHED = "message_published"
    MESSAGE_FAILED = "message_failed"
    MESSAGE_DEAD = "message_dead"
    RELAY_PAUSED = "relay_paused"
    DELIVERY_JUDGED = "delivery_judged"
    CALL_ATTEMPTED = "call_attempted"
    CALL_ENDED = "call_ended"


STARTS = frozenset({EventKind.CLAIMED, EventKind.TAKEN_OVER})
"""The work of an attempt begins."""
ENDS = frozenset({EventKind.COMPLETED, EventKind.RELEASED, EventKind.LEFT, EventKind.SUPERSEDED, EventKind.NOT_STORED})
"""The work of an attempt is over."""

OF_MESSAGES = frozenset({EventKind.MESSAGE_PUBLISHED, EventKind.MESSAGE_FAILED, EventKind.MESSAGE_DEAD})
"""A relay tried to publish a message: the key's scope is its topic, the key's name its id."""

OF_CALLS = frozenset({EventKind.CALL_ATTEMPTED, EventKind.CALL_ENDED})
"""A caller has sent a request, or has ended a call: these are a `CallEvent` each."""

REFUSALS = ("key-missing", "key-malformed", "body-too-large", "too-many-keys")
"""The details of `REFUSED`."""

UNNAMED = frozenset({EventKind.REFUSED, EventKind.PURGED, EventKind.RELAY_PAUSED, EventKind.DELIVERY_JUDGED, *OF_CALLS})
"""Events that may be about no single key."""

ABSENT, IN_PROGRESS, UNKNOWN = "absent", State.IN_PROGRESS.value, "unknown"
TRANSITIONS: Mapping[EventKind, tuple[str, str]] = MappingProxyType(
    {
        EventKind.CLAIMED: (ABSENT, IN_PROGRESS),
        EventKind.TAKEN_OVER: (UNKNOWN, IN_PROGRESS),
        EventKind.COMPLETED: (IN_PROGRESS, "finished"),
        EventKind.RELEASED: (IN_PROGRESS, ABSENT),
        EventKind.LEFT: (IN_PROGRESS, UNKNOWN),
        EventKind.NOT_STORED: (IN_PROGRESS, UNKNOWN),
    }
)
"""The state that the record gets, for events that report a change of it."""


class Event(Struct, frozen=True):
    kind: EventKind
    key: Key
    attempt: int = 0
    detail: str = ""
    """Why: the store's error, or for `REFUSED` the suffix of the problem's type."""
    owner: str = ""
    """The owner that holds the key, or held it when its result was stored."""
    asker: str = ""
    """The owner that the current request named; empty when that is `owner`, or when there is no request."""
    state: State | None = None
    """For `COMPLETED` and `REPLAYED`: how the work ended."""
    ran_ms: int | None = None
    """For `REPLAYED`: how long the first execution took, by the store's clock, where that is known."""
    count: int = 1
    """For `PURGED`: how many records."""
    handling: str = ""
    """For `DELIVERY_JUDGED`, which reports the verdict on a delivery: the name of its `Handling`."""

    def __eq__(self, other: object) -> bool:
        """Two reports of one thing are equal: owners and durations do not count."""
        return isinstance(other, Event) and self._compared_fields() == other._compared_fields()

    def __hash__(self) -> int:
        return hash(self._compared_fields())

    def _compared_fields(self) -> tuple[object, ...]:
        return self.kind, self.key, self.attempt, self.detail, self.handling

    @property
    def correlation(self) -> str:
        """The correlation id of the owner's request, if it had one: for a replay, the one of the first request."""
        return correlation_of(self.owner)

    @property
    def request(self) -> str:
        """The correlation id of the current request, if it has one: for a replay, the one of the repeat."""
        return correlation_of(self.asker or self.owner)

    @property
    def key_digest(self) -> str:
        """The key's name for logs and traces, as a digest: knowing the name may be enough to read the answer."""
        unnamed = self.key.name == NO_KEY.name and self.kind in UNNAMED
        return "" if unnamed else self.key.name_digest

    @property
    def transition(self) -> str:
        """The change of the record's state; empty when there was none."""
        if self.kind not in TRANSITIONS:
            return ""
        before, after = TRANSITIONS[self.kind]
        if self.kind is EventKind.COMPLETED and self.state is not None:
            after = self.state.value
        elif self.kind is EventKind.RELEASED and self.attempt > 1:
            after = UNKNOWN  # the outcome of the earlier attempt is still unknown
        return f"{before} -> {after}"

    def fields(self) -> dict[str, str | int]:
        """The fields to log, by name, without empty ones. A key is there only as a digest; a message has its id."""
        found: dict[str, str | int | None] = {"event": self.kind.value}
        if self.kind in OF_MESSAGES:
            found |= {"message": self.key.name, "topic": self.key.scope}
        else:
            found |= {"key": self.key_digest, "tenant": self.key.tenant, "scope": self.key.scope}
        found |= {
            "attempt": self.attempt,
            "transition": self.transition,
            "request": self.request,
            "first_request": self.correlation if self.correlation != self.request else "",
            "ran_ms": self.ran_ms,
            "count": self.count if self.kind is EventKind.PURGED else None,
            "handling": self.handling,
            "detail": self.detail,
        }
        return {name: value for name, value in found.items() if value not in ("", 0, None)}

    def __str__(self) -> str:
        fields = self.fields()
        return " ".join([str(fields.pop("event")), *(f"{name}={value}" for name, value in fields.items())])
