"""`semel stuck`."""

from __future__ import annotations

from datetime import timedelta
from itertools import chain

import click

from semel.cli.expiry import warn_of_near_end
from semel.cli.options import (
    OpenedStore,
    duration,
    option,
    store_option,
)
from semel.cli.order import Listing, first_of, list_options
from semel.cli.output import print_records, seconds
from semel.cli.scan import RecordScan
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
@list_options
@click.pass_context
def stuck(
    ctx: click.Context,
    store: OpenedStore,
    tenant: str | None,
    scope: str | None,
    older_than: timedelta,
    listing: Listing,
) -> None:
    """Find unknown outcomes, and leases that are held for too long.

    An unknown outcome is work that was interrupted: only you can find out whether it took effect. Repeats are refused
    until "semel keys resolve" or "release" ends it, or until its retention ends (unknown_retention of the policy, 30
    days by default). The command also counts those that end within a week, and records that cannot be read. It ends
    with 1 if it finds anything and with 3 if the store cannot be asked, so you can use it as a check.

    \b
    Examples:
      semel stuck
      semel stuck --older-than 1h --tenant shop --json
      semel stuck --limit 100000 --json-lines > unknown.jsonl
    """
    held_ms = round(older_than.total_seconds() * 1000)
    asked = (Filter("unknown", tenant, scope), Filter("in_progress", tenant, scope, older_than_ms=held_ms))
    scan = RecordScan(store.inspectable)
    found = first_of(chain.from_iterable(map(scan.records, asked)), listing.limit, listing.order, scan)
    if found.records or scan.count or listing.form != "table":
        print_records(found, scan, names=listing.names, form=listing.form)
    else:
        click.echo(f"No outcome is unknown, and no lease is held for more than {seconds(older_than)}.")
    warn_of_near_end(found.records, scan.now_ms)
    ctx.exit(1 if found.records or scan.count else 0)
