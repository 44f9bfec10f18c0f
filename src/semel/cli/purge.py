"""`semel purge`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import click

from semel.cli.expiry import read_unknown, warn_of_near_end
from semel.cli.options import COUNT_MAX, Number, OpenedStore, count, json_option, option, store_option
from semel.cli.output import print_json
from semel.cli.scan import RecordScan
from semel.store import Inspectable, Store


@click.command()
@store_option
@option("--batch", type=click.IntRange(1, 10_000), default=1_000, help="Delete at most N records at a time.")
@option("--limit", type=click.IntRange(1, COUNT_MAX), help="Stop after N records; all by default.")
@option("--rate", type=Number(0, COUNT_MAX, min_open=True), help="Delete at most N records a second, on average.")
@json_option
def purge(store: OpenedStore, batch: int, limit: int | None, rate: float | None, json: bool) -> None:
    """Delete records past retention, in batches, beside live traffic.

    It deletes only records past retention, so it does not prompt. Run it regularly (cron, a timer), or run
    semel.purger.Purger inside the service; both may run at once, in several places.

    \b
    Examples:
      semel purge
      semel purge --rate 2000 --limit 1000000 --json
    """
    batches = _batches(store.store, batch, limit, rate)
    purged = 0
    with click.progressbar(
        batches,
        label="Purging",
        length=None if limit is None else -(-limit // batch),
        item_show_func=lambda gone: "" if gone is None else count(gone),
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
    ) as shown:
        for so_far in shown:
            purged = so_far
    if json:
        print_json({"action": "purge", "changed": purged})
    else:
        click.echo(f"Purged {count(purged)}.")
    if isinstance(store.store, Inspectable):
        scan = RecordScan(store.store)
        warn_of_near_end(read_unknown(scan), scan.now_ms)


def _batches(store: Store, batch: int, limit: int | None, rate: float | None) -> Iterator[int]:
    """Purge batch by batch, and say each time how many are gone so far."""
    started_s, purged = time.monotonic(), 0
    while limit is None or purged < limit:
        size = batch if limit is None else min(batch, limit - purged)
        gone = store.purge(limit=size)
        purged += gone
        yield purged
        if gone < size:
            return
        if rate is not None:
            time.sleep(max(0.0, started_s + purged / rate - time.monotonic()))
