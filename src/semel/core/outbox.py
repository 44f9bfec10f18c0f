"""What is asked of an outbox: calls as values, and their replies.

A store with an outbox answers them by scripts of its own (`semel.store.Outboxed`). A message waits until a relay has
published it, or has given it up as a dead letter. A relay holds a message by its `owner`, a random name for each batch;
every change by a relay is refused for messages that another owner holds by then.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from semel.core.effects import Effect
from semel.core.messages import Message
from semel.core.records import Member

ERROR_MAX = 1_000
"""How many characters of an error are kept with its message."""


class MessageState(Member):
    """States as stored. A message that a relay holds is waiting, too."""

    value: Literal["waiting", "published", "dead"]  # pyright: ignore[reportIncompatibleMethodOverride]

    WAITING = "waiting"
    PUBLISHED = "published"
    DEAD = "dead"


class Taken(Struct, frozen=True):
    """A message that a relay holds, and its place in the order."""

    sequence: int
    message: Message


class FailedMessage(Struct, frozen=True):
    """Publishing it failed: it counts as an attempt, and the message waits for `delay_ms`."""

    sequence: int
    error: str
    delay_ms: int


class DeadMessage(Struct, frozen=True):
    """It is not published any more, for this reason."""

    sequence: int
    error: str


class AddMessage(Effect[bool], frozen=True):
    """Add a message in the caller's transaction. False if the same message is there already, under its id."""

    message: Message


class TakeMessages(Effect[tuple[Taken, ...]], frozen=True):
    """Hold up to `count` waiting messages for `lease_ms`, first come first.

    With `by_key`, a message is taken only together with every earlier waiting message of its key: none is taken while a
    relay holds an earlier one, or while an earlier one waits for its next try. With `dead_block`, nor while an earlier
    one is dead.
    """

    owner: str
    count: int
    lease_ms: int
    by_key: bool = True
    dead_block: bool = False


class SettleMessages(Effect[int], frozen=True):
    """Say what became of messages that `owner` holds. Those of another owner are left alone; the reply counts ours.

    `untried` are given back as they were: that is no attempt.
    """

    owner: str
    published: tuple[int, ...] = ()
    failed: tuple[FailedMessage, ...] = ()
    dead: tuple[DeadMessage, ...] = ()
    untried: tuple[int, ...] = ()


class PurgeMessages(Effect[int], frozen=True):
    """Delete up to `limit` messages that were published at least `older_ms` ago; says how many."""

    older_ms: int
    limit: int


class OutboxFilter(Struct, frozen=True):
    """Which messages to show. Everything that is given must hold."""

    state: MessageState | None = None
    topic: str | None = None
    key: str | None = None
    id_prefix: str = ""
    older_than_ms: int = 0
    """At least this long since the message was added."""


class OutboxEntry(Struct, frozen=True):
    """A message as an operator sees it."""

    sequence: int
    message: Message
    state: MessageState
    created_ms: int
    available_ms: int
    lease_until_ms: int
    settled_ms: int
    error: str


class OutboxPage(Struct, frozen=True):
    """Some messages in their order, the store's time, and the number to continue after (None at the end)."""

    entries: tuple[OutboxEntry, ...]
    after: int | None
    now_ms: int


class ListMessages(Effect[OutboxPage], frozen=True):
    filter: OutboxFilter
    limit: int
    after: int = 0


class OutboxCounts(Struct, frozen=True):
    waiting: int
    published: int
    dead: int
    oldest_ms: int | None
    """The age of the oldest waiting message."""


class CountMessages(Effect[OutboxCounts], frozen=True):
    pass


class RedriveMessages(Effect[int], frozen=True):
    """Let dead messages wait again, with all their attempts; says how many of these sequence numbers were dead."""

    sequences: tuple[int, ...]


class DiscardMessages(Effect[int], frozen=True):
    """Delete dead messages; says how many of these sequence numbers were dead."""

    sequences: tuple[int, ...]
