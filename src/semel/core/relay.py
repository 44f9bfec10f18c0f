"""The plan of a relay: take messages, publish them, say what became of them.

Publishing never happens inside of the transaction that takes messages. A message that was published, and whose relay
died before it could say so, is published again by another relay, under the same id.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from semel.core.effects import Effect, Pause, Plan, do
from semel.core.messages import Message
from semel.core.outbox import (
    ERROR_MAX,
    DeadMessage,
    FailedMessage,
    PurgeMessages,
    SettleMessages,
    TakeMessages,
    Taken,
)
from semel.core.records import Member
from semel.core.verdicts import delay_after_ms
from semel.errors import StoreError

Order = Literal["key", "none"]
AWAY_FIRST_MS, AWAY_MS_MAX = 200, 10_000
"""The pauses while a broker or the store is away: they double up to the second number."""
PURGE_EVERY_MS = 60_000
PURGE_BATCH = 1_000


class Fate(Member):
    """What became of one message in one round."""

    PUBLISHED = "published"
    FAILED = "failed"
    POISON = "refused for good"
    AWAY = "the broker is away"
    UNTRIED = "not tried"


class Sent(Struct, frozen=True):
    sequence: int
    fate: Fate
    error: str = ""


class RelaySettings(Struct, frozen=True):
    order: Order
    batch: int
    lease_ms: int
    attempts_max: int
    dead_block: bool
    keep_ms: int
    """How long published messages are kept before they are purged; a message added twice meanwhile is one message."""
    poll_ms: int


class PublishLanes(Effect[tuple[Sent, ...]], frozen=True):
    """Publish lanes side by side, and the messages of a lane one after the other.

    A lane ends at its first message that is not published, and all of them end when the lease does: the rest is
    `UNTRIED`. `AWAY` ends all lanes.
    """

    lanes: tuple[tuple[Taken, ...], ...]
    lease_ms: int


class AwaitMessages(Effect[None], frozen=True):
    """Sleep until there may be new messages, at most `timeout_ms`."""

    timeout_ms: int


class Settled(Effect[None], frozen=True):
    """Report what became of the messages of a round, for events, metrics and the log."""

    messages: tuple[tuple[Message, Fate, str], ...]


class BrokerAway(Effect[None], frozen=True):
    """Report that a broker or the store is away, and for how long the relay pauses."""

    reason: str
    pause_ms: int


class NewOwner(Effect[str], frozen=True):
    """A random name for the next batch."""


class IsStopping(Effect[bool], frozen=True):
    """Whether the relay was asked to stop."""


class RoundResult(Struct, frozen=True):
    """What one round did."""

    published: int
    taken: int
    away: str = ""
    """Why nothing can be published now, if the broker or the store is away."""


def run_round(settings: RelaySettings) -> Plan[RoundResult]:
    """Take one batch, publish it, and say what became of it."""
    owner = yield from do(NewOwner())
    by_key = settings.order == "key"
    try:
        taken = yield from do(
            TakeMessages(owner, settings.batch, settings.lease_ms, by_key, by_key and settings.dead_block)
        )
    except StoreError as error:
        return RoundResult(0, 0, str(error))
    if not taken:
        return RoundResult(0, 0)
    sent = yield from do(PublishLanes(lanes_of(taken, settings.order), settings.lease_ms))
    settle = settlement_of(owner, taken, sent, settings.attempts_max)
    away = next((each.error for each in sent if each.fate is Fate.AWAY), "")
    try:
        yield from do(settle)
    except StoreError as error:
        # The messages come back when their lease ends, and are published again under the same ids.
        return RoundResult(0, len(taken), str(error))
    messages = {each.sequence: each.message for each in taken}
    dead = {each.sequence for each in settle.dead}
    yield from do(
        Settled(
            tuple(
                (messages[each.sequence], Fate.POISON if each.sequence in dead else each.fate, each.error)
                for each in sent
            )
        )
    )
    return RoundResult(len(settle.published), len(taken), away)


def run_relay(settings: RelaySettings) -> Plan[None]:
    """Publish until the relay is asked to stop. A round that has begun is finished."""
    pause_ms, purge_due_ms = AWAY_FIRST_MS, 0
    while not (yield from do(IsStopping())):
        done = yield from run_round(settings)
        if done.away:
            yield from do(BrokerAway(done.away, pause_ms))
            yield from do(Pause(pause_ms))
            pause_ms = min(2 * pause_ms, AWAY_MS_MAX)
            continue
        pause_ms = AWAY_FIRST_MS
        now_ms = yield from do(Pause(0))
        if now_ms >= purge_due_ms:
            more = yield from purge_published(settings)
            purge_due_ms = now_ms if more else now_ms + PURGE_EVERY_MS
        if done.taken == 0:
            yield from do(AwaitMessages(settings.poll_ms))


def purge_published(settings: RelaySettings) -> Plan[bool]:
    """Delete a batch of old published messages; whether there may be more. A failure waits for the next time."""
    try:
        gone = yield from do(PurgeMessages(settings.keep_ms, PURGE_BATCH))
    except StoreError:
        return False
    return gone == PURGE_BATCH


def lanes_of(taken: tuple[Taken, ...], order: Order) -> tuple[tuple[Taken, ...], ...]:
    """The messages of one key are one lane, in their order; every other message is a lane of its own."""
    lanes: dict[object, list[Taken]] = {}
    for each in sorted(taken, key=lambda one: one.sequence):
        key = each.message.key if order == "key" else None
        lanes.setdefault(each.sequence if key is None else key, []).append(each)
    return tuple(map(tuple, lanes.values()))


def settlement_of(owner: str, taken: tuple[Taken, ...], sent: tuple[Sent, ...], attempts_max: int) -> SettleMessages:
    """What to tell the store. While the broker is away no attempt is counted."""
    attempts = {each.sequence: each.message.attempt for each in taken}
    published, untried = [], []
    failed: list[FailedMessage] = []
    dead: list[DeadMessage] = []
    for each in sent:
        error, attempt = each.error[:ERROR_MAX], attempts[each.sequence]
        if each.fate is Fate.PUBLISHED:
            published.append(each.sequence)
        elif each.fate is Fate.POISON:
            dead.append(DeadMessage(each.sequence, error))
        elif each.fate is Fate.FAILED and attempt >= attempts_max:
            dead.append(DeadMessage(each.sequence, f"given up after {attempt} attempts: {error}"[:ERROR_MAX]))
        elif each.fate is Fate.FAILED:
            failed.append(FailedMessage(each.sequence, error, delay_after_ms(attempt)))
        else:
            untried.append(each.sequence)
    return SettleMessages(owner, tuple(published), tuple(failed), tuple(dead), tuple(untried))
