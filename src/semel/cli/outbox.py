"""`semel outbox`: look at messages, redrive or discard dead ones, purge published ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

import click

from semel.cli.messages import (
    COLUMNS,
    MessageList,
    MessageScan,
    count_messages,
    find_message,
    list_messages,
    message_filter,
    message_filter_options,
    message_order_options,
    message_row,
    message_summary,
    payload_of,
)
from semel.cli.options import (
    COUNT_MAX,
    Number,
    OpenedStore,
    confirm,
    duration,
    json_option,
    limit_option,
    option,
    store_option,
    yes_option,
)
from semel.cli.order import order_of
from semel.cli.output import print_json, print_table
from semel.codecs.terminal import visible, visible_lines
from semel.core.effects import Effect
from semel.core.outbox import DiscardMessages, MessageState, OutboxEntry, PurgeMessages, RedriveMessages

F = TypeVar("F", bound=Callable[..., Any])
TOGETHER = 500
"""How many messages are redriven or discarded in one step."""
REFUSED = "it is not dead any more: it was redriven, discarded or published meanwhile"


@click.group()
def outbox() -> None:
    """List, show, redrive, discard and purge messages.

    A message waits until a relay has published it, or has given it up: then it is dead. Commands take a message's id in
    full, or the beginning of it if no other id begins so.

    \b
    Examples:
      semel outbox list --state dead
      semel outbox show 0193f2
      semel outbox redrive --topic orders.created --yes
    """


@outbox.command("list")
@store_option
@message_filter_options
@limit_option(100, "Show at most N messages.")
@message_order_options
@json_option
def list_(
    store: OpenedStore,
    limit: int,
    sort: str | None,
    reverse: bool,
    scan_max: int | None,
    json: bool,
    **which: Any,
) -> None:
    """List messages, in the order in which they are published.

    --sort reads up to --scan-max messages that match, sorts those and shows the first --limit of them. Published
    messages are listed until they are purged.

    \b
    Examples:
      semel outbox list --state waiting --older-than 5m
      semel outbox list --state dead --sort settled --reverse
      semel outbox list --topic orders.created --json
    """
    scan = MessageScan(store)
    listed = list_messages(scan, message_filter(**which), limit, order_of(sort, reverse, scan_max))
    scan.warn_unreadable()
    if json:
        _print_json(listed, scan)
        return
    if listed.entries:
        print_table(COLUMNS, [message_row(entry, scan.now_ms) for entry in listed.entries])
    else:
        click.echo("No message matches.")
    if listed.more:
        read = f", of the first {listed.scanned} that were sorted" if listed.sorted_by else ""
        raises = "--scan-max or --limit" if listed.sorted_by else "--limit"
        click.echo(
            f"There are more than these {len(listed.entries)}{read}: raise {raises}, or choose more narrowly.", err=True
        )


def _print_json(listed: MessageList, scan: MessageScan) -> None:
    order = {} if listed.sorted_by is None else {"sorted_by": listed.sorted_by, "scanned": listed.scanned}
    messages = [message_summary(entry, scan.now_ms) for entry in listed.entries]
    print_json({"messages": messages, "more": listed.more, "unreadable": scan.unreadable_as_json()} | order)


@outbox.command()
@store_option
@click.argument("id", metavar="ID")
@option("--body-max", type=click.IntRange(0, COUNT_MAX), default=1000, help="Show at most N bytes of the payload.")
@json_option
def show(store: OpenedStore, id: str, body_max: int, json: bool) -> None:
    """Show one message with its headers and the beginning of its payload.

    \b
    Examples:
      semel outbox show 0193f2a4-7c1e-7b60-9b5e-3d2f8f1c2a10
      semel outbox show 0193f2 --json
    """
    scan = MessageScan(store)
    entry = find_message(scan, store, id)
    shown, payload = message_summary(entry, scan.now_ms), payload_of(entry, body_max)
    if json:
        print_json(shown | payload)
        return
    for name, value in shown.items():
        if value is not None:
            click.echo(f"{name.replace('_', ' '):<12} {visible(value)}")
    for name, value in payload["headers"].items():
        click.echo(f"{'header':<12} {visible(name)}: {visible(value)}")
    click.echo(f"\n{visible_lines(payload['payload'])}")
    if payload["truncated"]:
        click.echo("… (--body-max shows more)", err=True)


def dead_options(command: F) -> F:
    """One message, or all dead ones that match."""
    given: tuple[Callable[[F], F], ...] = (
        store_option,
        click.argument("id", required=False, metavar="[ID]"),
        message_filter_options,
        limit_option(1000, "Act on at most N messages."),
        yes_option,
        json_option,
    )
    for each in reversed(given):
        command = each(command)
    return command


@outbox.command()
@dead_options
def redrive(store: OpenedStore, **which: Any) -> None:
    """Let dead messages wait again, with all their attempts, at their old places in the order.

    One message, or all dead ones that match. Later messages of its key may have been published already, unless the
    relay runs with --dead-block.

    \b
    Examples:
      semel outbox redrive 0193f2a4-7c1e-7b60-9b5e-3d2f8f1c2a10
      semel outbox redrive --topic orders.created --older-than 1h --yes
    """
    _change_dead(store, RedriveMessages, "Let {} wait again, so that a relay publishes them?", "Redrove", **which)


@outbox.command()
@dead_options
def discard(store: OpenedStore, **which: Any) -> None:
    """Delete dead messages: they are never published.

    One message, or all dead ones that match.

    \b
    Examples:
      semel outbox discard 0193f2a4-7c1e-7b60-9b5e-3d2f8f1c2a10
      semel outbox discard --topic test.events --yes
    """
    _change_dead(store, DiscardMessages, "Delete {} for ever, so that they are never published?", "Discarded", **which)


def _change_dead(
    store: OpenedStore,
    call: Callable[[tuple[int, ...]], Effect[int]],
    question: str,
    done: str,
    *,
    id: str | None,
    limit: int,
    yes: bool,
    json: bool,
    **which: Any,
) -> None:
    """Choose dead messages, ask for confirmation, act on them, and print what became of them."""
    scan, action = MessageScan(store), click.get_current_context().info_name or ""
    entries, more = _choose_dead(scan, store, id, limit, **which)
    if not entries:
        if json:
            print_json({"action": action, "changed": 0, "refused": 0, "more": False})
        else:
            click.echo("No dead message matches.")
        return
    confirm(question.format(count_messages(len(entries))), yes=yes)
    sequences = tuple(entry.sequence for entry in entries)
    changed = sum(scan.ask(call(sequences[at : at + TOGETHER])) for at in range(0, len(sequences), TOGETHER))
    refused = len(entries) - changed
    if json:
        print_json({"action": action, "changed": changed, "refused": refused, "more": more})
    else:
        click.echo(f"{done} {count_messages(changed)}.")
    if refused:
        raise click.ClickException(f"{count_messages(refused)} stayed as found: {REFUSED}.")


def _choose_dead(
    scan: MessageScan,
    store: OpenedStore,
    id: str | None,
    limit: int,
    *,
    state: str | None,
    topic: str | None,
    key: str | None,
    id_prefix: str,
    older_than: timedelta,
) -> tuple[Sequence[OutboxEntry], bool]:
    """The dead messages that are meant, and whether there are more than --limit."""
    filters = state or topic is not None or key is not None or id_prefix or older_than
    if id is not None:
        if filters:
            raise click.UsageError("With an ID no filter chooses: leave --state, --topic, --key and the others out.")
        entry = find_message(scan, store, id)
        if entry.state is not MessageState.DEAD:
            raise click.ClickException(f"{visible(entry.message.id)} is {entry.state.value}, not dead.")
        return [entry], False
    if not filters:
        raise click.UsageError(
            "Name an ID, or choose dead messages with --topic, --key, --id-prefix, --older-than or --state dead."
        )
    if state not in (None, MessageState.DEAD.value):
        return [], False
    chosen = message_filter(MessageState.DEAD.value, topic, key, id_prefix, older_than)
    found = list(islice(scan.entries(chosen), limit + 1))
    scan.warn_unreadable()
    if len(found) > limit:
        click.echo(f"There are more than --limit {limit}: the rest stays for the next time.", err=True)
    return found[:limit], len(found) > limit


@outbox.command()
@store_option
@option(
    "--older-than",
    type=duration,
    metavar="DURATION",
    default="24h",
    help="Only messages that were published at least this long ago.",
)
@option("--batch", type=click.IntRange(1, 10_000), default=1_000, help="Delete at most N messages at a time.")
@option("--limit", type=click.IntRange(1, COUNT_MAX), help="Stop after N messages; all by default.")
@option("--rate", type=Number(0, COUNT_MAX, min_open=True), help="Delete at most N messages a second, on average.")
@json_option
def purge(
    store: OpenedStore, older_than: timedelta, batch: int, limit: int | None, rate: float | None, json: bool
) -> None:
    """Delete published messages, in batches, beside live traffic.

    A relay does so by itself (--keep). It deletes only what was published, so it does not prompt; waiting and dead
    messages stay. A message that is added again under its id after that is published again.

    \b
    Examples:
      semel outbox purge
      semel outbox purge --older-than 1h --rate 2000 --json
    """
    scan, older_ms = MessageScan(store), round(older_than.total_seconds() * 1000)
    started_s, purged = time.monotonic(), 0
    while limit is None or purged < limit:
        size = batch if limit is None else min(batch, limit - purged)
        gone = scan.ask(PurgeMessages(older_ms, size))
        purged += gone
        if gone < size:
            break
        if rate is not None:
            time.sleep(max(0.0, started_s + purged / rate - time.monotonic()))
    if json:
        print_json({"action": "purge", "changed": purged})
    else:
        click.echo(f"Purged {count_messages(purged)}.")
