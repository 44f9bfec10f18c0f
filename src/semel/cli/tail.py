"""`semel tail`: compares what is there with what was there a moment ago, because no store tells all of its changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

import click
from msgspec.structs import replace

from semel.cli.options import Opened, duration, json_option, limit_option, names_option, option, store_option
from semel.cli.showing import Skipped, digest, moment, records_of, summary
from semel.clock import wall_ms
from semel.codecs.printable import json_text, visible
from semel.core.records import Key, Record
from semel.store import Filter, Inspectable, seen_as

EVERY_MIN = timedelta(milliseconds=10)
Seen = tuple[str, int, int | None]
"""What makes a change worth a line: another state, attempt or completion. A renewal does not."""


@click.command()
@store_option
@option("--tenant", help="Only records of this tenant.")
@option("--scope", help="Only records of this scope, for example 'POST /payments'.")
@option("--prefix", default="", help="Only keys whose name begins with this.")
@option("--every", type=duration, metavar="DURATION", default="1s", help="How often to look.")
@option("--from-start", is_flag=True, help="Begin with what is there already.")
@option("--events", type=click.IntRange(1), help="Stop after so many lines.")
@limit_option(10_000, "Look at so many records at most each time.")
@names_option
@json_option
def tail(
    store: Opened,
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

    One line for each record that is new, in another state, or gone; with --json one JSON document a line. It looks
    every second, so what begins and is gone within one is not seen, and each look reads all records that match: choose
    a tenant or a scope in a large store.

    \b
    Examples:
      semel tail --scope 'POST /payments'
      semel tail --json --names | jq .
    """
    if every < EVERY_MIN:
        raise click.BadParameter("looking more often than every 10ms would do nothing else", param_hint="--every")
    changes = _changes(store.inspectable, Filter(None, tenant, scope, prefix), every, limit, from_start)
    try:
        for what, record in islice(changes, events):
            click.echo(_document(what, record, names) if json else _line(what, record, names))
    except KeyboardInterrupt:
        return  # how it is meant to end


def _changes(
    store: Inspectable, chosen: Filter, every: timedelta, limit: int, from_start: bool
) -> Iterator[tuple[str, Record]]:
    before: dict[Key, tuple[Seen, Record]] | None = {} if from_start else None
    skipped: Skipped | None = Skipped()
    while True:
        now_ms = wall_ms()
        after = {
            record.key: (_seen(record, now_ms), replace(record, result=None))
            for record in islice(records_of(store, chosen, skipped), limit)
        }
        if skipped is not None:  # told once, of what was there at the beginning
            skipped.tell()
            skipped = None
        if before is not None:
            for key, (seen, record) in after.items():
                if key not in before or before[key][0] != seen:
                    yield seen[0], record
            if len(after) < limit:  # else it may only be out of sight
                yield from (("gone", record) for key, (_, record) in before.items() if key not in after)
        before = after
        time.sleep(every.total_seconds())


def _seen(record: Record, now_ms: int) -> Seen:
    return seen_as(record, now_ms), record.attempt, record.completed_ms


def _line(what: str, record: Record, names: bool) -> str:
    key = record.key
    shown = key.name if names else digest(key.name)
    texts = (moment(wall_ms()), f"{what:<11}", shown, f"attempt {record.attempt}", key.tenant, key.scope)
    return "  ".join(map(visible, texts))


def _document(what: str, record: Record, names: bool) -> str:
    return json_text({"event": what, "seen": moment(wall_ms())} | summary(record, names=names))
