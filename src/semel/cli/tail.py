"""`semel tail`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from time import monotonic, sleep

import click

from semel.cli.changes import Changes, RecordChange
from semel.cli.options import (
    COUNT_MAX,
    OpenedStore,
    duration,
    json_option,
    limit_option,
    names_option,
    option,
    store_option,
)
from semel.cli.output import digest, moment, summary
from semel.codecs.terminal import json_text, visible
from semel.store import Filter

EVERY_MIN = timedelta(milliseconds=10)
SLOW_S = 1.0


@click.command()
@store_option
@option("--tenant", help="Only records of this tenant.")
@option("--scope", help="Only records of this scope, for example 'POST /payments'.")
@option("--prefix", default="", help="Only keys whose name begins with this.")
@option("--every", type=duration, metavar="DURATION", default="1s", help="How often to read the store.")
@option("--from-start", is_flag=True, help="Begin with what is there already.")
@option("--events", type=click.IntRange(1, COUNT_MAX), help="Stop after N lines.")
@limit_option(10_000, "Read at most N records each time.")
@names_option
@json_option
def tail(
    store: OpenedStore,
    tenant: str | None,
    scope: str | None,
    prefix: str,
    every: timedelta,
    from_start: bool,
    events: int | None,
    limit: int,
    names: bool,
    json: bool,
) -> None:
    """Follow records as they change, until Ctrl-C.

    Prints one line for each record that is new, in another state, or gone; with --json, one JSON document per line. It
    reads the store every second, so it does not see a record that appears and disappears between two reads.

    Up to --limit records, it reads all that match each time. If there are more, it reads only records that were created
    since the last time and records that were unfinished then: it does not show that a finished record is deleted, and
    says so. No store has an index by time of creation. PostgreSQL and SQLite read the whole table for that, and Redis
    all of its keys, so one pass over millions of records takes long. After each pass it pauses for as long as the pass
    took. A tenant or a scope makes it quicker, except on Redis.

    \b
    Examples:
      semel tail --scope 'POST /payments'
      semel tail --json --names | jq .
    """
    if every < EVERY_MIN:
        raise click.BadParameter("the store cannot be read more often than every 10ms", param_hint="--every")
    changes = Changes(store, Filter(None, tenant, scope, prefix), limit)
    try:
        for change in islice(_follow(changes, every, from_start), events):
            click.echo(_document(change, names) if json else _line(change, names))
    except KeyboardInterrupt:
        return  # how it is meant to end


def _follow(changes: Changes, every: timedelta, from_start: bool) -> Iterator[RecordChange]:
    every_s, is_told = every.total_seconds(), False
    began_s = monotonic()
    there = changes.begin()
    if from_start:
        yield from there
    while True:
        took_s = monotonic() - began_s
        if took_s > max(every_s, SLOW_S) and not is_told:
            is_told = True
            click.echo(
                f"Reading the records takes {took_s:.1f}s, so there is a pause of the same length after each time.",
                err=True,
            )
        sleep(max(every_s, took_s))
        began_s = monotonic()
        yield from changes.read_again()


def _line(change: RecordChange, names: bool) -> str:
    key = change.record.key
    shown = key.name if names else digest(key.name)
    texts = (
        moment(change.seen_ms),
        f"{change.what:<11}",
        shown,
        f"attempt {change.record.attempt}",
        key.tenant,
        key.scope,
    )
    return "  ".join(map(visible, texts))


def _document(change: RecordChange, names: bool) -> str:
    told = {"event": change.what, "seen": moment(change.seen_ms)}
    return json_text(told | summary(change.record, change.seen_ms, names=names))
