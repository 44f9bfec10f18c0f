"""The plan of a relay: take messages, publish them, say what became of them.

Publishing never happens inside of the transaction that takes messages. A message that was published, and whose relay
died before it could say so, is published again by another relay, under the same id.

A relay starts to publish a message only while its own clock says that the publishing must end before its lease does. It
looks at the clock before each message, so a relay that was stopped for longer than its lease leaves the rest alone.
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
AwayPart = Literal["", "store", "broker"]
AWAY_FIRST_MS, AWAY_MS_MAX = 200, 10_000
"""The pauses while a broker or the store is away: they double up to the second number."""
LAST_PAUSE_MS = 1_000
"""A relay that was asked to stop tries to settle its last batch until its pauses are longer than this."""
PURGE_EVERY_MS, PURGE_PAUSE_MS = 60_000, 20
"""How long after a purge, and after a batch of one that has more to delete, the next one begins."""
PURGE_BATCH = 1_000
TOO_SLOW = "taking the messages took so long that no time of the lease was left: make the lease longer"


class Fate(Member):
    """What became of one message in one round."""

    PUBLISHED = "published"
    FAILED = "failed"
    POISON = "refused for good"
    AWAY = "the broker is away"
    UNTRIED = "not tried"


class MessageFate(Struct, frozen=True):
    sequence: int
    fate: Fate
    error: str = ""


class RelaySettings(Struct, frozen=True):
    order: Order
    batch: int
    lease_ms: int
    timeout_ms: int
    """How long the broker may take to confirm one message. It is less than half of the lease."""
    attempts_max: int
    dead_block: bool
    keep_ms: int
    """How long published messages are kept before they are purged; a message added twice meanwhile is one message."""
    poll_ms: int


class NewOwner(Effect[str], frozen=True):
    """A random name for the next batch."""


class ReadClock(Effect[int], frozen=True):
    """The time in milliseconds, of a clock that never jumps and goes on while the process is stopped."""


class IsStopping(Effect[bool], frozen=True):
    """Whether the relay was asked to stop."""


class PublishLanes(Effect[tuple[MessageFate, ...]], frozen=True):
    """Publish lanes side by side, and the messages of a lane one after the other.

    A message is started only before `start_until_ms` of the clock that `ReadClock` reads, and the broker has
    `timeout_ms` to confirm it; if it does not, it is `AWAY`. A lane ends at its first message that is not published.
    `AWAY` ends all lanes, and so does the wish to stop: the rest is `UNTRIED`.
    """

    lanes: tuple[tuple[Taken, ...], ...]
    start_until_ms: int
    timeout_ms: int


class AwaitMessages(Effect[None], frozen=True):
    """Sleep until there may be new messages, at most `timeout_ms`. Being asked to stop ends it."""

    timeout_ms: int


class Rest(Effect[None], frozen=True):
    """Sleep. Being asked to stop ends it."""

    rest_ms: int


class ReportRound(Effect[None], frozen=True):
    """Report what became of the messages of a round, for events, metrics and the log."""

    messages: tuple[tuple[Message, Fate, str], ...]
    overtaken: int = 0
    """How many of them another relay held by then, since the lease had ended: they are published twice."""


class ReportPause(Effect[None], frozen=True):
    """Report that the broker or the store is away, and for how long the relay pauses."""

    reason: str
    pause_ms: int


class RoundResult(Struct, frozen=True):
    """What one round did."""

    published: int
    taken: int
    away: str = ""
    """Why nothing can be published now, if the broker or the store is away."""
    part: AwayPart = ""
    """Which of the two is away."""


def run_round(settings: RelaySettings) -> Plan[RoundResult]:
    """Take one batch, publish it, and say what became of it."""
    owner = yield from do(NewOwner())
    by_key = settings.order == "key"
    # The lease begins in the store after this moment, so it ends there after it ends here.
    began_ms = yield from do(ReadClock())
    try:
        taken = yield from do(
            TakeMessages(owner, settings.batch, settings.lease_ms, by_key, by_key and settings.dead_block)
        )
    except StoreError as error:
        return RoundResult(0, 0, str(error), "store")
    if not taken:
        return RoundResult(0, 0)
    ends_ms = began_ms + settings.lease_ms
    sent = yield from do(
        PublishLanes(lanes_of(taken, settings.order), start_until_ms(settings, began_ms), settings.timeout_ms)
    )
    settle = settlement_of(owner, taken, sent, settings.attempts_max)
    away, overtaken = yield from settle_round(settle, ends_ms)
    yield from do(ReportRound(report_of(taken, sent, settle), overtaken))
    part: AwayPart = "store" if away else ""
    if not away and all(each.fate is Fate.UNTRIED for each in sent):
        away, part = TOO_SLOW, "store"
    for each in sent:
        if each.fate is Fate.AWAY:
            away, part = each.error, "broker"
            break
    return RoundResult(len(settle.published), len(taken), away, part)


def run_relay(settings: RelaySettings) -> Plan[None]:
    """Publish until the relay is asked to stop. A round that has begun is settled."""
    pause_ms = AWAY_FIRST_MS
    while not (yield from do(IsStopping())):
        done = yield from run_round(settings)
        if done.published or not done.away:
            pause_ms = AWAY_FIRST_MS
        if done.away:
            if not (yield from do(IsStopping())):
                yield from do(ReportPause(done.away, pause_ms))
                yield from do(Rest(pause_ms))
                pause_ms = min(2 * pause_ms, AWAY_MS_MAX)
        elif done.taken == 0:
            yield from do(AwaitMessages(settings.poll_ms))


def run_purge(settings: RelaySettings) -> Plan[None]:
    """Purge beside the relay, in batches, until it is asked to stop."""
    while not (yield from do(IsStopping())):
        more = yield from purge_published(settings)
        yield from do(Rest(PURGE_PAUSE_MS if more else PURGE_EVERY_MS))


def purge_published(settings: RelaySettings) -> Plan[bool]:
    """Delete a batch of old published messages; whether there may be more. A failure waits for the next time."""
    try:
        gone = yield from do(PurgeMessages(settings.keep_ms, PURGE_BATCH))
    except StoreError:
        return False
    return gone == PURGE_BATCH


def settle_round(settle: SettleMessages, ends_ms: int) -> Plan[tuple[str, int]]:
    """Settle a batch, if need be again and again until its lease ends: what is not settled is published once more.

    The reply is the store's last error, if it could not be settled, and how many messages another relay held by then.
    """
    pause_ms = AWAY_FIRST_MS
    total = len(settle.published) + len(settle.failed) + len(settle.dead) + len(settle.untried)
    while True:
        try:
            settled = yield from do(settle)
        except StoreError as error:
            now_ms = yield from do(ReadClock())
            is_last = pause_ms > LAST_PAUSE_MS and (yield from do(IsStopping()))
            if is_last or now_ms + pause_ms >= ends_ms:
                return str(error), 0
            yield from do(Pause(pause_ms))
            pause_ms *= 2
        else:
            # After a try whose reply was lost, the number says nothing: that one may have settled them.
            return "", total - settled if pause_ms == AWAY_FIRST_MS else 0


def start_until_ms(settings: RelaySettings, began_ms: int) -> int:
    """Until when a message may be started: its confirmation, and settling the batch, must fit into the lease."""
    return began_ms + settings.lease_ms - settings.timeout_ms - settings.lease_ms // 8


def lanes_of(taken: tuple[Taken, ...], order: Order) -> tuple[tuple[Taken, ...], ...]:
    """The messages of one key are one lane, in their order; every other message is a lane of its own."""
    lanes: dict[object, list[Taken]] = {}
    for each in sorted(taken, key=lambda one: one.sequence):
        key = each.message.key if order == "key" else None
        lanes.setdefault(each.sequence if key is None else key, []).append(each)
    return tuple(map(tuple, lanes.values()))


def settlement_of(
    owner: str, taken: tuple[Taken, ...], sent: tuple[MessageFate, ...], attempts_max: int
) -> SettleMessages:
    """What to tell the store. While the broker is away no attempt is counted."""
    attempts = {each.sequence: each.message.attempt for each in taken}
    published: list[int] = []
    untried: list[int] = []
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


def report_of(
    taken: tuple[Taken, ...], sent: tuple[MessageFate, ...], settle: SettleMessages
) -> tuple[tuple[Message, Fate, str], ...]:
    """What became of each message, for people: one that was given up is as dead as one that was refused."""
    messages = {each.sequence: each.message for each in taken}
    dead = {each.sequence: each.error for each in settle.dead}
    return tuple(
        (messages[each.sequence], Fate.POISON, dead[each.sequence])
        if each.sequence in dead
        else (messages[each.sequence], each.fate, each.error)
        for each in sent
    )
