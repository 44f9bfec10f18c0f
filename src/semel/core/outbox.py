"""What is asked of an outbox: calls as values, and their replies. `core.outbox_model` says what each of them does.

A store with an outbox answers them by scripts of its own (`semel.store.Outboxed`). A message waits until a relay has
published it, or has given it up as a dead letter. A relay holds a message by its `owner`, a random name for each batch;
every change by a relay is refused for messages that it does not hold any more. A lease that ran out ends that only when
another relay has taken the message.

Only what a relay says counts as an attempt: published, failed or dead. A relay that dies, or that finds its broker
away, has said nothing. So neither of them ever makes a dead letter of a message.
"""

from __future__ import annotations

from enum import Enum
from typing import Generic, Literal, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from semel.core.effects import Effect
from semel.core.messages import Message
from semel.core.records import NOBODY, OWNER_MAX, Key, Member, check_duration, check_text, plain_text

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
ERROR_MAX = 1_000
"""How many characters of an error are kept with its message."""
TAKE_MAX = 1_000
LIST_MAX = 1_000
PURGE_MAX = 10_000
SEQUENCES_MAX = 10_000
"""How many messages one call may name."""
SEQUENCE_MAX = 2**63 - 1


class MessageState(Member):
    """States as stored. A message that a relay holds is waiting, too."""

    value: Literal["waiting", "published", "dead"]  # pyright: ignore[reportIncompatibleMethodOverride]

    WAITING = "waiting"
    PUBLISHED = "published"
    DEAD = "dead"


class OutboxCall(Effect[T_co], Generic[T_co], frozen=True):
    """A call that a store with an outbox answers."""

    def checked(self) -> Self:
        """Itself, within the limits of every store; the error names the field."""
        return self


class Taken(Struct, frozen=True):
    """A message that a relay holds, and its place in the order. The attempt that begins now is counted in it."""

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


class IdOrigin(Enum):
    """Where the id of a message comes from, if no operation derived it: another transaction may add a given one."""

    GIVEN = "given"
    RANDOM = "random"


class AddMessage(Effect[bool], frozen=True):
    """Add a message in the caller's transaction. False if there is one with this id already.

    Stores refuse another message under the id with `MessageReused`.
    """

    message: Message
    origin: IdOrigin | Key = IdOrigin.GIVEN
    """The key of the operation that derived the id: only another attempt of it adds the same message."""


class TakeMessages(OutboxCall[tuple[Taken, ...]], frozen=True):
    """Hold up to `count` waiting messages for `lease_ms`, in their order. Fewer does not mean that no more are waiting.

    With `by_key`, a message is taken only together with every earlier waiting message of its key. None is taken while a
    relay holds an earlier one, or while an earlier one waits for its next try. With `dead_block`, nor while an earlier
    one is dead. Messages without a key have no order.
    """

    owner: str
    count: int
    lease_ms: int
    by_key: bool = True
    dead_block: bool = False

    def checked(self) -> Self:
        return replace(
            self,
            owner=check_text("owner", self.owner, OWNER_MAX),
            count=_check_number("count", self.count, 1, TAKE_MAX),
            lease_ms=check_duration("lease_ms", self.lease_ms),
        )


class SettleMessages(OutboxCall[int], frozen=True):
    """Say what became of messages that `owner` holds. Any other message is left alone; the reply counts ours.

    `untried` are given back as they were: that is no attempt.
    """

    owner: str
    published: tuple[int, ...] = ()
    failed: tuple[FailedMessage, ...] = ()
    dead: tuple[DeadMessage, ...] = ()
    untried: tuple[int, ...] = ()

    def checked(self) -> Self:
        failed, dead = (each.sequence for each in self.failed), (each.sequence for each in self.dead)
        named = (*self.published, *failed, *dead, *self.untried)
        if len(_check_sequences(named)) != len(set(named)):
            raise ValueError("a message is settled in one way: a sequence number stands twice in this call")
        for each in self.failed:
            check_duration("delay_ms", each.delay_ms, least_ms=0)
        return replace(
            self,
            owner=check_text("owner", self.owner, OWNER_MAX),
            failed=tuple(replace(each, error=_checked_error(each.error)) for each in self.failed),
            dead=tuple(replace(each, error=_checked_error(each.error)) for each in self.dead),
        )


class PurgeMessages(OutboxCall[int], frozen=True):
    """Delete up to `limit` messages that were published at least `older_ms` ago, oldest first; says how many."""

    older_ms: int
    limit: int

    def checked(self) -> Self:
        check_duration("older_ms", self.older_ms, least_ms=0)
        _check_number("limit", self.limit, 1, PURGE_MAX)
        return self


class OutboxFilter(Struct, frozen=True):
    """Which messages to show. Everything that is given must hold."""

    state: MessageState | None = None
    topic: str | None = None
    key: str | None = None
    id_prefix: str = ""
    older_than_ms: int = 0
    """At least this long since the message was added."""

    def checked(self) -> Self:
        check_duration("older_than_ms", self.older_than_ms, least_ms=0)
        topic, key = self.topic, self.key
        return replace(
            self,
            topic=None if topic is None else plain_text("topic", topic),
            key=None if key is None else plain_text("key", key),
            id_prefix=plain_text("id_prefix", self.id_prefix),
        )

    def matches(self, entry: OutboxEntry, now_ms: int) -> bool:
        message = entry.message
        return (
            self.state in (None, entry.state)
            and self.topic in (None, message.topic)
            and self.key in (None, message.key)
            and message.id.startswith(self.id_prefix)
            and now_ms - entry.created_ms >= self.older_than_ms
        )


class OutboxEntry(Struct, frozen=True):
    """A message as an operator sees it. Its attempt says how many attempts have ended since it was last redriven."""

    sequence: int
    message: Message
    state: MessageState
    created_ms: int
    available_ms: int
    """When it may be tried again."""
    lease_until_ms: int
    settled_ms: int
    """When it was published, or given up."""
    error: str
    """Of the last attempt that failed; a published message has none."""
    owner: str = NOBODY
    """The relay's name for the batch that holds it."""


class UnreadableMessage(Struct, frozen=True):
    """A message that this version cannot read, and why. It is kept, and the later messages of its key wait for it."""

    sequence: int
    reason: str


class OutboxPage(Struct, frozen=True):
    """Some messages in their order, the store's time, and the number to continue after (None at the end).

    A message that cannot be read is named in `unreadable`, whatever the filter asks for. Both together are at most as
    many as the limit.
    """

    entries: tuple[OutboxEntry, ...]
    after: int | None
    now_ms: int
    unreadable: tuple[UnreadableMessage, ...] = ()


class ListMessages(OutboxCall[OutboxPage], frozen=True):
    filter: OutboxFilter
    limit: int
    after: int = 0

    def checked(self) -> Self:
        _check_number("limit", self.limit, 1, LIST_MAX)
        _check_number("after", self.after, 0, SEQUENCE_MAX)
        return replace(self, filter=self.filter.checked())


class OutboxCounts(Struct, frozen=True):
    waiting: int
    published: int
    dead: int
    oldest_ms: int | None
    """The age of the waiting message that is first in the order."""
    unreadable: int = 0
    """Messages in a state that this version does not know; the other counts do not include them."""


class CountMessages(OutboxCall[OutboxCounts], frozen=True):
    pass


class RedriveMessages(OutboxCall[int], frozen=True):
    """Let dead messages wait again, with all their attempts; says how many of these sequence numbers were dead."""

    sequences: tuple[int, ...]

    def checked(self) -> Self:
        _check_sequences(self.sequences)
        return self


class DiscardMessages(OutboxCall[int], frozen=True):
    """Delete dead messages; says how many of these sequence numbers were dead."""

    sequences: tuple[int, ...]

    def checked(self) -> Self:
        _check_sequences(self.sequences)
        return self


def checked_call(call: Effect[T]) -> OutboxCall[T]:
    """The call, if a store can answer it."""
    if isinstance(call, OutboxCall):
        return call.checked()
    if isinstance(call, AddMessage):
        raise TypeError("a message is added in your own transaction: semel.transaction.within(connection).publish(…)")
    raise TypeError(f"an outbox does not answer {type(call).__name__}")


def _check_number(field: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ValueError(f"{field} must be between {least} and {most}, not {value}")
    return value


def _check_sequences(sequences: tuple[int, ...]) -> tuple[int, ...]:
    _check_number("the number of messages", len(sequences), 0, SEQUENCES_MAX)
    for sequence in sequences:
        _check_number("sequence", sequence, 1, SEQUENCE_MAX)
    return sequences


def _checked_error(error: str) -> str:
    """The text of an error as every store can keep it: an error may have been raised with anything in it."""
    _check_number("the number of characters of an error", len(error), 0, ERROR_MAX)
    return error.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
