"""`semel stats`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import click
from msgspec import structs

from semel.cli.backlog import count_backlog
from semel.cli.options import COUNT_MAX, OpenedStore, json_option, option, store_option
from semel.cli.output import duration, print_json, print_table
from semel.cli.scan import RecordScan
from semel.core.outbox import OutboxCounts
from semel.store import Counts, Filter

EMPTY = OutboxCounts(waiting=0, published=0, dead=0, oldest_ms=None)


@dataclass
class Shares:
    """How many of the records that were read each tenant and scope has.

    This is a ranking only if all records were read: most stores return records one tenant after the other, so the first
    ones say nothing about the rest.
    """

    scanned: int = 0
    scanned_all: bool = True
    tenants: Counter[str] = field(default_factory=Counter)
    scopes: Counter[str] = field(default_factory=Counter)

    def add_all(self, scan: RecordScan, scan_max: int) -> None:
        records = scan.records(Filter())
        for record in islice(records, scan_max):
            self.scanned += 1
            self.tenants[record.key.tenant] += 1
            self.scopes[record.key.scope] += 1
        self.scanned_all = next(records, None) is None

    def rank(self, found: Counter[str], top: int) -> list[tuple[str, int]]:
        """The greatest first. If not all records were read, by name, because a ranking would mean nothing."""
        return found.most_common(top) if self.scanned_all else sorted(found.items())[:top]


@click.command()
@store_option
@option(
    "--top",
    type=click.IntRange(0, COUNT_MAX),
    default=10,
    help="Show at most N tenants and scopes; 0 only counts states.",
)
@option("--scan-max", type=click.IntRange(1, COUNT_MAX), default=10_000, help="Read at most N records for that.")
@json_option
def stats(store: OpenedStore, top: int, scan_max: int, json: bool) -> None:
    """Count records by state, tenant and scope, and messages by state.

    States are counted in the store. Tenants and scopes are counted by reading records, up to --scan-max of them. If
    those were all, the greatest come first. Otherwise tenants and scopes are listed by name and not ranked, because
    stores return records one tenant after the other: the first records are no sample. Redis has no index, so it walks
    over its keys, in short steps.

    \b
    Examples:
      semel stats
      semel stats --top 3 --scan-max 100000 --json
    """
    scan, shares = RecordScan(store.inspectable), Shares()
    counts, backlog = store.inspectable.counts(), count_backlog(store.store)
    if top:
        shares.add_all(scan, scan_max)
    scan.warn_unreadable()
    if json:
        told: dict[str, Any] = {"counts": asdict(counts), "scanned": shares.scanned, "scanned_all": shares.scanned_all}
        told |= {"ranked": shares.scanned_all, "messages": None if backlog is None else structs.asdict(backlog)}
        for name, found in (("tenants", shares.tenants), ("scopes", shares.scopes)):
            told[name] = [{"value": value, "records": number} for value, number in shares.rank(found, top)]
        print_json({**told, "unreadable": scan.unreadable_as_json()})
        return
    _print_counts(counts)
    if backlog is not None and backlog != EMPTY:
        click.echo()
        print_table(("messages", "count"), _rows_of(backlog))
    for name, found in (("tenant", shares.tenants), ("scope", shares.scopes)):
        if found:
            heading = "records" if shares.scanned_all else f"of the first {shares.scanned}"
            click.echo()
            print_table((name, heading), [(value or "(none)", number) for value, number in shares.rank(found, top)])
    if not shares.scanned_all:
        total = counts.in_progress + counts.unknown + counts.succeeded + counts.failed + counts.unreadable
        about = "" if counts.exact else "about "
        click.echo(
            f"\nNo ranking: only the first {shares.scanned} of {about}{total} records were looked at, and the store "
            "gives them in an order of its own, one tenant after the other. --scan-max looks at more.",
            err=True,
        )


def _rows_of(backlog: OutboxCounts) -> list[tuple[str, str]]:
    oldest = "" if backlog.oldest_ms is None else f", the oldest for {duration(backlog.oldest_ms)}"
    rows = [
        ("waiting", f"{backlog.waiting}{oldest}"),
        ("published", f"{backlog.published}"),
        ("dead", f"{backlog.dead}"),
    ]
    return [*rows, ("unreadable", f"{backlog.unreadable}")] if backlog.unreadable else rows


def _print_counts(counts: Counts) -> None:
    about = "" if counts.exact else "about "
    rows = [
        ("in_progress", counts.in_progress),
        ("unknown", counts.unknown),
        ("succeeded", f"{about}{counts.succeeded}"),
        ("failed", f"{about}{counts.failed}"),
    ]
    if counts.unreadable:
        rows.append(("unreadable", f"{about}{counts.unreadable}"))
    print_table(("state", "records"), rows)
