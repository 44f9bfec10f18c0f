"""The row that is a message of an outbox, the same in every SQL store, and what settles it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from semel.core.messages import Message
from semel.core.outbox import MessageState, OutboxEntry, OutboxPage, SettleMessages, Taken, UnreadableMessage
from semel.stores.sql.headers import headers_from

COLUMNS = (
    "sequence",
    "id",
    "aggregatetype",
    "payload",
    "content_type",
    "aggregateid",
    "headers",
    "attempt",
    "state",
    "created_ms",
    "available_ms",
    "lease_until_ms",
    "settled_ms",
    "error",
    "owner",
)
WAITING, PUBLISHED, DEAD = 0, 1, 2
CODES = {MessageState.WAITING: WAITING, MessageState.PUBLISHED: PUBLISHED, MessageState.DEAD: DEAD}
STATES = {code: state for state, code in CODES.items()}
KNOWN = f"state IN ({WAITING}, {PUBLISHED}, {DEAD})"
BLOCKING = f"e.state <> {PUBLISHED} AND (e.state <> {WAITING} OR e.owner <> '' OR e.available_ms > e.created_ms)"
"""As the index says it."""
LOOK_AGAIN_MS = 60_000
"""A waiting message that cannot be read is looked at again after this: perhaps by a version that knows more."""
KEPT_MS = -1
"""In place of a delay: the time of the next try stays as it is."""


class SettledRow(msgspec.Struct, frozen=True):
    """What becomes of one row of the relay: its state, how many attempts are added, its delay and its error."""

    sequence: int
    state: int
    tried: int
    delay_ms: int
    error: str


def settled_rows(call: SettleMessages) -> list[SettledRow]:
    """In the order of the sequence numbers, in which every batch reaches its rows."""
    rows = [
        *(SettledRow(sequence, PUBLISHED, 1, KEPT_MS, "") for sequence in call.published),
        *(SettledRow(each.sequence, WAITING, 1, each.delay_ms, each.error) for each in call.failed),
        *(SettledRow(each.sequence, DEAD, 1, KEPT_MS, each.error) for each in call.dead),
        *(SettledRow(sequence, WAITING, 0, KEPT_MS, "") for sequence in call.untried),
    ]
    return sorted(rows, key=lambda row: row.sequence)


def to_entry(row: Sequence[Any]) -> OutboxEntry | UnreadableMessage:
    """Read a row of `COLUMNS`. What does not make sense was written by a version that knows more, or is damaged."""
    sequence, id, topic, payload, content_type, key, headers, attempt, code, *times, error, owner = row
    created_ms, available_ms, lease_until_ms, settled_ms = times
    try:
        texts = (id, topic, content_type, headers, error, owner, "" if key is None else key)
        if not all(isinstance(each, str) for each in texts):
            raise TypeError("a column holds bytes where there should be text")
        if not all(isinstance(each, int) for each in (attempt, *times)):
            raise TypeError("a column holds text where there should be a number")
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise TypeError(f"payload is {type(payload).__name__}, not bytes")
        carried = MappingProxyType(headers_from(headers))
        message = Message(id, topic, bytes(payload), content_type, key, carried, attempt)
        return OutboxEntry(
            sequence, message, STATES[code], created_ms, available_ms, lease_until_ms, settled_ms, error, owner
        )
    except KeyError:
        reason = f"the state {code!r} is not one that this version knows: upgrade semel"
    except (TypeError, ValueError) as problem:
        words = str(problem) if isinstance(problem, TypeError) else "its headers are no JSON object of texts"
        reason = f"{words}: upgrade semel, or mend its row in semel_outbox"
    return UnreadableMessage(sequence, reason)


def to_taken(rows: Iterable[Sequence[Any]], *, by_key: bool) -> tuple[tuple[Taken, ...], list[SettledRow]]:
    """What a relay is given of the rows it took, in their order, and what is to be given back.

    A row that cannot be read waits, and so do the messages behind it. That is not an attempt.
    """
    taken: list[Taken] = []
    back: list[SettledRow] = []
    keys: set[object] = set()
    for row in sorted(rows, key=lambda row: row[0]):
        entry, key = to_entry(row), row[COLUMNS.index("aggregateid")]
        if isinstance(entry, UnreadableMessage):
            back.append(SettledRow(entry.sequence, WAITING, 0, LOOK_AGAIN_MS, entry.reason))
            keys.add(key)
        elif by_key and key is not None and key in keys:
            back.append(SettledRow(entry.sequence, WAITING, 0, KEPT_MS, ""))
        else:
            message = entry.message
            taken.append(Taken(entry.sequence, msgspec.structs.replace(message, attempt=message.attempt + 1)))
    return tuple(taken), back


def to_page(rows: Iterable[Sequence[Any]], limit: int, now_ms: int) -> OutboxPage:
    """A page of rows that match, and of those that cannot be read, of which each may be there twice."""
    found = [each for _, each in sorted({row[0]: to_entry(row) for row in rows}.items())]
    shown = found[:limit]
    entries = tuple(each for each in shown if isinstance(each, OutboxEntry))
    unreadable = tuple(each for each in shown if isinstance(each, UnreadableMessage))
    return OutboxPage(entries, shown[-1].sequence if len(found) > limit else None, now_ms, unreadable)


def chunks(rows: Sequence[SettledRow]) -> Iterator[list[Any]]:
    """One list for each field, as statements with arrays take them."""
    return (list(column) for column in zip(*(msgspec.structs.astuple(row) for row in rows), strict=True))
