"""The plan of a consumer: deliveries in, verdicts out, in the same order.

Nothing is marked as handled before it is handled. A delivery is acknowledged only when the store has its record, and
every failure that counts is counted outside of the transaction that was rolled back. The plan decides; it is told how
a try ended (`Tried`) by code that has a database.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from semel.core.attempts import CountAttempt
from semel.core.effects import Effect, Emit, Pause, Plan, do
from semel.core.events import Event, EventKind
from semel.core.records import Key
from semel.core.verdicts import ATTEMPTS_MAX, Handling, Settling, Verdict, delay_after_ms, judge
from semel.errors import StoreError

TRIES_MAX = 5
"""How often one delivery is tried before it is delivered again, if the database gives its transaction up."""
TRY_PAUSE_MS, TRY_PAUSE_MS_MAX = 10, 1_000
"""The pause before the next try: it doubles with each."""
BUSY_DELAY_MS_MAX = 10_000
"""The longest delay of a delivery whose message is being handled elsewhere: the lease that it waits for is renewed."""
RETENTION_MS = 7 * 24 * 3600 * 1000


class NamedMessage(Struct, frozen=True):
    """A delivery as a store knows it: two deliveries with equal names are one message."""

    key: Key
    fingerprint: str = ""
    """The digest of the payload; empty if payloads are not compared."""


class RefusedMessage(Struct, frozen=True):
    """A delivery that cannot be handled: it has no id, or one that no store can keep."""

    key: Key
    reason: str


class Tried(Struct, frozen=True):
    """How one try ended, and what that is if it is not tried again."""

    handling: Handling
    reason: str = ""
    delay_ms: int | None = None
    again: bool = False
    """Whether another try at once may end differently: nothing of this one was kept, or the record tells."""


class TryMessage(Effect[Tried], frozen=True):
    """Handle one delivery, and keep its record with its effects."""

    at: int
    """Its place among the deliveries."""


class TryTogether(Effect["tuple[Tried, ...] | None"], frozen=True):
    """Handle several deliveries in one transaction. None: it was rolled back, and each has to be tried alone."""

    at: tuple[int, ...]


class ConsumerLimits(Struct, frozen=True):
    attempts_max: int = ATTEMPTS_MAX
    tries_max: int = TRIES_MAX
    retention_ms: int = RETENTION_MS
    """How long failed attempts are remembered after the last one."""


def consume(
    messages: Sequence[NamedMessage | RefusedMessage], limits: ConsumerLimits, *, together: bool = False
) -> Plan[list[Verdict]]:
    """The verdicts on deliveries that came together. Equal ones are tried once, and the later ones get its verdict.

    With `together` all of them are tried in one transaction first. Once the store is away, the rest is not tried.
    """
    verdicts: dict[NamedMessage, Verdict] = {}
    if together:
        yield from _try_together(messages, verdicts)
    judged: list[Verdict] = []
    away: Verdict | None = None
    seen: set[NamedMessage] = set()
    for at, message in enumerate(messages):
        if isinstance(message, RefusedMessage):
            verdict = judge(Handling.UNNAMED, message.reason)
        elif message in seen:
            verdict = _verdict_on_copy(verdicts[message])
        elif message in verdicts:
            verdict = verdicts[message]
        elif away is not None:
            verdict = verdicts[message] = away
        else:
            verdict = verdicts[message] = yield from _judge_one(at, message.key, limits)
            away = verdict if verdict.settling is Settling.STOP else None
        if isinstance(message, NamedMessage):
            seen.add(message)
        judged.append(verdict)
        yield Emit(judged_event(message.key, verdict))
    return judged


def judged_event(key: Key, verdict: Verdict) -> Event:
    """The event that reports a verdict."""
    said = "" if verdict.reason == verdict.handling.value else verdict.reason
    return Event(EventKind.DELIVERY_JUDGED, key, verdict.attempt, said, handling=verdict.handling.name.lower())


def _try_together(
    messages: Sequence[NamedMessage | RefusedMessage], verdicts: dict[NamedMessage, Verdict]
) -> Plan[None]:
    first = {message: at for at, message in reversed(list(enumerate(messages))) if isinstance(message, NamedMessage)}
    if len(first) < 2:
        return
    places = sorted(first.values())
    tried = yield from do(TryTogether(tuple(places)))
    for at, ended in zip(places, tried or (), strict=tried is not None):
        message = messages[at]
        assert isinstance(message, NamedMessage)
        verdicts[message] = judge(ended.handling, ended.reason)


def _verdict_on_copy(first: Verdict) -> Verdict:
    """A second delivery of a message in one batch: handled if the first was, else it shares the first's fate."""
    if first.settling is Settling.ACKNOWLEDGE:
        return judge(Handling.DUPLICATE)
    return replace(first, counted=False)


def _judge_one(at: int, key: Key, limits: ConsumerLimits) -> Plan[Verdict]:
    tried = yield from do(TryMessage(at))
    for number in range(1, limits.tries_max):
        if not tried.again:
            break
        yield from do(Pause(min(TRY_PAUSE_MS << number - 1, TRY_PAUSE_MS_MAX)))
        tried = yield from do(TryMessage(at))
    if tried.handling is Handling.RAISED:
        return (yield from _count(key, tried.reason, limits))
    delay_ms = tried.delay_ms
    if tried.handling is Handling.IN_PROGRESS and delay_ms is not None:
        delay_ms = max(1, min(delay_ms, BUSY_DELAY_MS_MAX))
    return judge(tried.handling, tried.reason, delay_ms=delay_ms)


def _count(key: Key, reason: str, limits: ConsumerLimits) -> Plan[Verdict]:
    """Count the failed attempt. A message whose attempts are used up has all of them again if it is redriven."""
    try:
        count = yield from do(CountAttempt(key, reason, limits.retention_ms).checked())
    except StoreError as error:
        return judge(Handling.STORE_AWAY, f"{reason}; and this attempt was not counted: {error}")
    attempt = (count - 1) % limits.attempts_max + 1
    if attempt == limits.attempts_max:
        return judge(Handling.EXHAUSTED, reason, attempt=count)
    return judge(Handling.RAISED, reason, attempt=count, delay_ms=delay_after_ms(attempt))
