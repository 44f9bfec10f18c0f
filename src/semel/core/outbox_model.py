"""What an outbox does, as pure functions: (outbox, call, now) -> (outbox, reply).

This is the specification: the scripts of every store must be observationally equal to it. A store shows a message when
the transaction that added it commits. By then it may have shown messages with greater numbers, so what a relay is given
depends on the states of messages, and never on how far some relay has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from semel.core.effects import Effect
from semel.core.messages import Message
from semel.core.outbox import (
    AddMessage,
    CountMessages,
    DiscardMessages,
    ListMessages,
    MessageState,
    OutboxCounts,
    OutboxEntry,
    OutboxPage,
    PurgeMessages,
    RedriveMessages,
    SettleMessages,
    TakeMessages,
    Taken,
)
from semel.core.records import NOBODY

T = TypeVar("T")


class Outbox(Struct, frozen=True):
    """All messages by their numbers, and the last number that was given."""

    entries: Mapping[int, OutboxEntry] = MappingProxyType({})
    last: int = 0

    def in_order(self) -> list[OutboxEntry]:
        return [self.entries[sequence] for sequence in sorted(self.entries)]

    def of_state(self, state: MessageState) -> list[OutboxEntry]:
        return [entry for entry in self.in_order() if entry.state is state]

    def but(self, changed: Iterable[OutboxEntry] = (), gone: Iterable[OutboxEntry] = ()) -> Outbox:
        entries = {**self.entries, **{entry.sequence: entry for entry in changed}}
        for entry in gone:
            del entries[entry.sequence]
        return replace(self, entries=MappingProxyType(entries))


def answer(outbox: Outbox, call: Effect[T], now_ms: int) -> tuple[Outbox, T]:
    """What a store replies to `call`, and what it holds afterwards."""
    found = STEPS.get(type(call))
    if found is None:
        raise TypeError(f"an outbox does not answer {type(call).__name__}")
    new, reply = found(outbox, call, now_ms)
    return new, reply


def add(outbox: Outbox, call: AddMessage, now_ms: int) -> tuple[Outbox, bool]:
    """Add the message, and commit."""
    reserved, sequence = reserve(outbox)
    return show(reserved, sequence, call.message, now_ms)


def reserve(outbox: Outbox) -> tuple[Outbox, int]:
    """The number of a message whose transaction has not ended. If it is rolled back, no message ever has this one."""
    return replace(outbox, last=outbox.last + 1), outbox.last + 1


def show(outbox: Outbox, sequence: int, message: Message, now_ms: int) -> tuple[Outbox, bool]:
    """Commit the message that has this number. There is only one message with its id."""
    if any(entry.message.id == message.id for entry in outbox.entries.values()):
        return outbox, False
    entry = OutboxEntry(sequence, replace(message, attempt=0), MessageState.WAITING, now_ms, now_ms, 0, 0, "")
    return outbox.but([entry]), True


def take(outbox: Outbox, call: TakeMessages, now_ms: int) -> tuple[Outbox, tuple[Taken, ...]]:
    """Hold what is first in the order and may be tried now."""
    blocked: set[str | None] = set()
    held: list[OutboxEntry] = []
    for entry in outbox.in_order():
        key = entry.message.key
        if entry.state is MessageState.WAITING and key not in blocked and _may_be_tried(entry, now_ms):
            held.append(replace(entry, owner=call.owner, lease_until_ms=now_ms + call.lease_ms))
            if len(held) == call.count:
                break
        elif call.by_key and key is not None and _blocks(entry, call):
            blocked.add(key)
    return outbox.but(held), tuple(
        Taken(entry.sequence, replace(entry.message, attempt=entry.message.attempt + 1)) for entry in held
    )


def _may_be_tried(entry: OutboxEntry, now_ms: int) -> bool:
    """No relay holds it, and its next try is due."""
    return entry.lease_until_ms <= now_ms and entry.available_ms <= now_ms


def _blocks(entry: OutboxEntry, call: TakeMessages) -> bool:
    """Whether the later messages of its key have to wait, as this one is not taken."""
    return entry.state is MessageState.WAITING or (call.dead_block and entry.state is MessageState.DEAD)


def settle(outbox: Outbox, call: SettleMessages, now_ms: int) -> tuple[Outbox, int]:
    """What became of messages, by the relay that holds them."""

    def ours(sequence: int) -> Iterable[OutboxEntry]:
        entry = outbox.entries.get(sequence)
        held = entry is not None and entry.state is MessageState.WAITING and entry.owner == call.owner
        return [replace(entry, owner=NOBODY, lease_until_ms=0)] if entry is not None and held else []

    changed = [
        *(
            replace(_tried(entry), state=MessageState.PUBLISHED, settled_ms=now_ms, error="")
            for sequence in call.published
            for entry in ours(sequence)
        ),
        *(
            replace(_tried(entry), available_ms=now_ms + failed.delay_ms, error=failed.error)
            for failed in call.failed
            for entry in ours(failed.sequence)
        ),
        *(
            replace(_tried(entry), state=MessageState.DEAD, settled_ms=now_ms, error=dead.error)
            for dead in call.dead
            for entry in ours(dead.sequence)
        ),
        *(entry for sequence in call.untried for entry in ours(sequence)),
    ]
    return outbox.but(changed), len(changed)


def _tried(entry: OutboxEntry) -> OutboxEntry:
    """An attempt has ended."""
    return replace(entry, message=replace(entry.message, attempt=entry.message.attempt + 1))


def purge(outbox: Outbox, call: PurgeMessages, now_ms: int) -> tuple[Outbox, int]:
    """Delete what was published long ago."""
    published = sorted(outbox.of_state(MessageState.PUBLISHED), key=lambda entry: (entry.settled_ms, entry.sequence))
    gone = [entry for entry in published if entry.settled_ms <= now_ms - call.older_ms][: call.limit]
    return outbox.but(gone=gone), len(gone)


def page(outbox: Outbox, call: ListMessages, now_ms: int) -> tuple[Outbox, OutboxPage]:
    """Some messages, in their order."""
    rest = (entry for entry in outbox.in_order() if entry.sequence > call.after and call.filter.matches(entry, now_ms))
    found = list(islice(rest, call.limit + 1))
    shown = tuple(found[: call.limit])
    return outbox, OutboxPage(shown, shown[-1].sequence if len(found) > call.limit else None, now_ms)


def count(outbox: Outbox, call: CountMessages, now_ms: int) -> tuple[Outbox, OutboxCounts]:
    """How many messages there are, and for how long the first of them has waited."""
    waiting = outbox.of_state(MessageState.WAITING)
    published, dead = (len(outbox.of_state(state)) for state in (MessageState.PUBLISHED, MessageState.DEAD))
    oldest_ms = now_ms - waiting[0].created_ms if waiting else None
    return outbox, OutboxCounts(len(waiting), published, dead, oldest_ms)


def redrive(outbox: Outbox, call: RedriveMessages, now_ms: int) -> tuple[Outbox, int]:
    """Let dead messages wait again, at their old places in the order."""
    dead = _dead(outbox, call.sequences)
    waiting = [
        replace(
            entry,
            message=replace(entry.message, attempt=0),
            state=MessageState.WAITING,
            available_ms=now_ms,
            settled_ms=0,
        )
        for entry in dead
    ]
    return outbox.but(waiting), len(dead)


def discard(outbox: Outbox, call: DiscardMessages, now_ms: int) -> tuple[Outbox, int]:
    """Delete dead messages."""
    dead = _dead(outbox, call.sequences)
    return outbox.but(gone=dead), len(dead)


def _dead(outbox: Outbox, sequences: tuple[int, ...]) -> list[OutboxEntry]:
    return [entry for entry in outbox.of_state(MessageState.DEAD) if entry.sequence in sequences]


Step = Callable[[Outbox, Any, int], tuple[Outbox, Any]]
STEPS: Mapping[type[Effect[Any]], Step] = MappingProxyType(
    {
        AddMessage: add,
        TakeMessages: take,
        SettleMessages: settle,
        PurgeMessages: purge,
        ListMessages: page,
        CountMessages: count,
        RedriveMessages: redrive,
        DiscardMessages: discard,
    }
)
