"""`semel purge`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import click

from semel.cli.options import Opened, option, store_option
from semel.store import Store


@click.command()
@store_option
@option("--batch", type=click.IntRange(1, 10_000), default=1_000, help="Delete so many at a time.")
@option("--limit", type=click.IntRange(1), help="Stop after so many; all by default.")
@option("--rate", type=click.FloatRange(0, min_open=True), help="Delete at most so many a second, on average.")
def purge(store: Opened, batch: int, limit: int | None, rate: float | None) -> None:
    """Delete records past retention, in batches, beside live traffic.

    Nobody is owed what it deletes, so it does not ask. Run it regularly (cron, a timer), or run semel.purger.Purger
    inside the service; both may run at once, in several places.

    \b
    Examples:
      semel purge
      semel purge --rate 2000 --limit 1000000
    """
    batches = _batches(store.store, batch, limit, rate)
    purged = 0
    with click.progressbar(
        batches,
        label="Purging",
        length=None if limit is None else -(-limit // batch),
        item_show_func=lambda gone: "" if gone is None else f"{gone} records",
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
    ) as shown:
        for so_far in shown:
            purged = so_far
    click.echo(f"Purged {purged} records.")


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
