"""`semel stuck`."""

from __future__ import annotations

from datetime import timedelta
from itertools import chain, islice

import click

from semel.cli.options import Opened, duration, json_option, limit_option, names_option, option, store_option
from semel.cli.showing import Skipped, print_records, records_of, seconds
from semel.store import Filter


@click.command()
@store_option
@option("--tenant", help="Only records of this tenant.")
@option("--scope", help="Only records of this scope, for example 'POST /payments'.")
@option(
    "--older-than",
    type=duration,
    metavar="DURATION",
    default="10m",
    help="Leases held for longer than this are shown, too.",
)
@limit_option(100, "Show at most so many.")
@names_option
@json_option
@click.pass_context
def stuck(
    ctx: click.Context,
    store: Opened,
    tenant: str | None,
    scope: str | None,
    older_than: timedelta,
    limit: int,
    names: bool,
    json: bool,
) -> None:
    """Find unknown outcomes, and leases that are held for too long.

    An unknown outcome is work that was interrupted: whether it took effect, only you can find out. Repeats are refused
    until "semel keys resolve" or "release" ends it, or its retention does. A record that cannot be read may be one.
    Ends with 1 if there is anything, so that it can be used as a check.

    \b
    Examples:
      semel stuck
      semel stuck --older-than 1h --tenant shop --json
    """
    held_ms = round(older_than.total_seconds() * 1000)
    asked = (Filter("unknown", tenant, scope), Filter("in_progress", tenant, scope, older_than_ms=held_ms))
    skipped = Skipped()
    every = chain.from_iterable(records_of(store.inspectable, chosen, skipped) for chosen in asked)
    found = list(islice(every, limit + 1))
    if found or skipped.count or json:
        print_records(found[:limit], skipped, more=len(found) > limit, names=names, as_json=json)
    else:
        click.echo(f"No outcome is unknown, and no lease is held for more than {seconds(older_than)}.")
    ctx.exit(1 if found or skipped.count else 0)
