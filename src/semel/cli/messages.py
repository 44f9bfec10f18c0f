"""The messages of an outbox, for the commands of `semel outbox`: chosen, found, sorted and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

import click

from semel.cli.options import OpenedStore, duration, option
from semel.cli.order import LATEST_MS, Order, sort_options
from semel.cli.output import duration as shown_duration
from semel.cli.output import moment, preview
from semel.codecs.terminal import visible
from semel.core.effects import Effect
from semel.core.outbox import ListMessages, MessageState, OutboxEntry, OutboxFilter, UnreadableMessage
from semel.runtime.clock import wall_ms
from semel.store import Outboxed

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
PAGE = 200
TOLD_MAX = 5
COLUMNS = ("id", "state", "attempts", "age", "topic", "key", "error")
ERROR_SHOWN = 60
FIELDS: Mapping[str, Callable[[OutboxEntry], Any]] = {
    "created": lambda entry: entry.created_ms,
    "settled": lambda entry: entry.settled_ms or LATEST_MS,
    "next-try": lambda entry: entry.available_ms,
    "attempts": lambda entry: entry.message.attempt,
    "state": lambda entry: entry.state.value,
    "topic": lambda entry: entry.message.topic,
    "key": lambda entry: entry.message.key or "",
    "size": lambda entry: len(entry.message.payload),
}


def outbox_of(opened: OpenedStore) -> Outboxed:
    if not isinstance(opened.store, Outboxed):
        raise click.UsageError(
            f"{opened.shown} has no outbox: messages are in the database that holds the rows of the service, so give "
            "that one (postgresql://, mariadb:// or sqlite://)"
        )
    return opened.store


def count_messages(number: int) -> str:
    return "1 message" if number == 1 else f"{number} messages"


class MessageScan:
    """Reads messages in their order. One that cannot be read is reported, and stops nothing."""

    def __init__(self, opened: OpenedStore) -> None:
        self._store = outbox_of(opened)
        self._unreadable: dict[int, UnreadableMessage] = {}
        self._now_ms: int | None = None

    @property
    def now_ms(self) -> int:
        """The store's time when it gave the last page."""
        return wall_ms() if self._now_ms is None else self._now_ms

    def ask(self, call: Effect[T]) -> T:
        return self._store.outbox(call)

    def entries(self, chosen: OutboxFilter) -> Iterator[OutboxEntry]:
        """All messages that match."""
        after: int | None = 0
        while after is not None:
            page = self._store.outbox(ListMessages(chosen, PAGE, after))
            self._now_ms, after = page.now_ms, page.after
            self._unreadable |= {each.sequence: each for each in page.unreadable}
            yield from page.entries

    def unreadable_as_json(self) -> list[dict[str, Any]]:
        return [{"sequence": each.sequence, "reason": each.reason} for each in self._unreadable.values()]

    def warn_unreadable(self) -> None:
        """Print a line to stderr for each of the first messages that cannot be read."""
        for each in islice(self._unreadable.values(), TOLD_MAX):
            click.echo(f"Skipped, because it cannot be read: {each.sequence}: {visible(each.reason)}", err=True)
        if len(self._unreadable) > TOLD_MAX:
            click.echo(f"Skipped {len(self._unreadable) - TOLD_MAX} more that cannot be read.", err=True)


def message_filter_options(command: F) -> F:
    """Options that choose messages; `message_filter` makes a filter of them."""
    states = [state.value for state in MessageState]
    given: tuple[Callable[[F], F], ...] = (
        option("--state", type=click.Choice(states), help="Only messages in this state."),
        option("--topic", help="Only messages of this topic."),
        option("--key", help="Only messages with this ordering key."),
        option("--id-prefix", default="", help="Only messages whose id begins with this."),
        option(
            "--older-than",
            type=duration,
            metavar="DURATION",
            default="0s",
            help="Only messages that were added at least this long ago.",
        ),
    )
    for each in reversed(given):
        command = each(command)
    return command


def message_filter(
    state: str | None, topic: str | None, key: str | None, id_prefix: str, older_than: timedelta
) -> OutboxFilter:
    chosen = None if state is None else MessageState(state)
    try:
        return OutboxFilter(chosen, topic, key, id_prefix, round(older_than.total_seconds() * 1000)).checked()
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def message_order_options(command: F) -> F:
    return sort_options(FIELDS, "messages")(command)


@dataclass(frozen=True, slots=True)
class MessageList:
    """The messages to show, whether there are more, and how many were read for that if they were sorted."""

    entries: list[OutboxEntry]
    more: bool
    sorted_by: str | None = None
    scanned: int = 0


def list_messages(scan: MessageScan, chosen: OutboxFilter, limit: int, order: Order | None) -> MessageList:
    """The first `limit` messages in the order that is asked for, else in that in which they are published."""
    entries = scan.entries(chosen)
    if order is None:
        found = list(islice(entries, limit + 1))
        return MessageList(found[:limit], len(found) > limit)
    read = list(islice(entries, order.scan_max))
    more = next(entries, None) is not None
    read.sort(key=FIELDS[order.field], reverse=order.reverse)
    return MessageList(read[:limit], more or len(read) > limit, order.field, len(read))


def find_message(scan: MessageScan, opened: OpenedStore, id_: str) -> OutboxEntry:
    """The message with this id, or the only one whose id begins so."""
    try:
        chosen = OutboxFilter(id_prefix=id_).checked()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    found: list[OutboxEntry] = []
    for entry in scan.entries(chosen) if id_ else ():
        if entry.message.id == id_:
            return entry
        if len(found) <= TOLD_MAX:
            found.append(entry)
    scan.warn_unreadable()
    if not found:
        raise click.ClickException(f"{opened.shown} has no such message; it may be purged.")
    if len(found) > 1:
        ids = "".join(f"\n  {visible(entry.message.id)}" for entry in found[:TOLD_MAX])
        raise click.UsageError(f"several messages have an id that begins with {visible(id_)}; give one in full:{ids}")
    return found[0]


def is_held(entry: OutboxEntry, now_ms: int) -> bool:
    return entry.state is MessageState.WAITING and entry.lease_until_ms > now_ms


def message_summary(entry: OutboxEntry, now_ms: int) -> dict[str, Any]:
    """A message as JSON, without its payload."""
    message = entry.message
    waiting = entry.state is MessageState.WAITING
    return {
        "id": message.id,
        "sequence": entry.sequence,
        "state": entry.state.value,
        "topic": message.topic,
        "key": message.key,
        "attempts": message.attempt,
        "created": moment(entry.created_ms),
        "next_try": moment(entry.available_ms) if waiting else None,
        "held_until": moment(entry.lease_until_ms) if is_held(entry, now_ms) else None,
        "settled": moment(entry.settled_ms) if entry.settled_ms else None,
        "content_type": message.content_type,
        "bytes": len(message.payload),
        "error": entry.error or None,
    }


def message_row(entry: OutboxEntry, now_ms: int) -> tuple[object, ...]:
    """A message as a line of a table of `COLUMNS`."""
    message, error = entry.message, entry.error
    state = f"{entry.state.value}, held" if is_held(entry, now_ms) else entry.state.value
    cut = error if len(error) <= ERROR_SHOWN else f"{error[:ERROR_SHOWN]}…"
    age = shown_duration(now_ms - entry.created_ms)
    return message.id, state, message.attempt, age, message.topic, message.key or "", cut


def payload_of(entry: OutboxEntry, most: int) -> dict[str, Any]:
    """Headers, and the beginning of the payload, as text if it is text."""
    shown = preview(entry.message.payload, most)
    return {"headers": dict(entry.message.headers), "payload": shown["body"], "truncated": shown["truncated"]}
