"""Unknown outcomes that are about to be forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice

import click

from semel.cli.scan import RecordScan
from semel.core.records import Record
from semel.store import Filter

NEAR_MS = 7 * 86_400_000
"""Commands warn of unknown outcomes whose retention ends within this time."""
LOOKED_AT = 10_000


def read_unknown(scan: RecordScan) -> list[Record]:
    """The unknown outcomes of a store, at most `LOOKED_AT` of them."""
    return list(islice(scan.records(Filter("unknown")), LOOKED_AT))


def describe_near_end(records: Iterable[Record], now_ms: int) -> str:
    """How many of these unknown outcomes are forgotten within a week, and when the first is. Empty if none is."""
    near = [record.expires_ms for record in records if record.lapsed(now_ms) and record.expires_ms - now_ms < NEAR_MS]
    if not near:
        return ""
    first = datetime.fromtimestamp(min(near) / 1000).astimezone().isoformat(" ", "seconds")
    count = "1 unknown outcome is" if len(near) == 1 else f"{len(near)} unknown outcomes are"
    return f"{count} forgotten within 7 days, the first at {first}"


def warn_of_near_end(records: Iterable[Record], now_ms: int) -> None:
    if told := describe_near_end(records, now_ms):
        click.echo(f"{told}: a repeat runs the work again after that. Resolve or release them before.", err=True)
