"""`semel stats`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import islice

import click

from semel.cli.options import Opened, json_option, option, store_option
from semel.cli.showing import Skipped, print_json, print_table, records_of
from semel.store import Counts, Filter


@click.command()
@store_option
@option("--top", type=click.IntRange(0), default=10, help="Show so many tenants and scopes; 0 only counts states.")
@option("--scan-max", type=click.IntRange(1), default=10_000, help="Look at so many records at most for that.")
@json_option
def stats(store: Opened, top: int, scan_max: int, json: bool) -> None:
    """Count records by state, tenant and scope.

    States are counted in the store. Tenants and scopes are counted by looking at records, up to --scan-max of them: the
    answer says whether that was all. Redis has no index, so it walks over its keys, in short steps.

    \b
    Examples:
      semel stats
      semel stats --top 3 --scan-max 100000 --json
    """
    inspectable = store.inspectable
    counts = inspectable.counts()
    skipped = Skipped()
    scanned, tenants, scopes, whole = 0, Counter[str](), Counter[str](), True
    if top:
        for record in islice(records_of(inspectable, Filter(), skipped), scan_max + 1):
            if scanned == scan_max:
                whole = False
                break
            scanned += 1
            tenants[record.key.tenant] += 1
            scopes[record.key.scope] += 1
    skipped.tell()
    if json:
        ranks = {"tenants": _ranked(tenants, top), "scopes": _ranked(scopes, top)}
        told = {"counts": asdict(counts), "scanned": scanned, "scanned_all": whole}
        print_json({**told, **ranks, "unreadable": skipped.as_json()})
        return
    _print(counts, {"tenant": tenants, "scope": scopes}, top)
    if not whole:
        click.echo(f"\nOnly {scanned} records were looked at: raise --scan-max for more.", err=True)


def _ranked(found: Counter[str], top: int) -> list[dict[str, object]]:
    return [{"value": value, "records": number} for value, number in found.most_common(top)]


def _print(counts: Counts, ranks: dict[str, Counter[str]], top: int) -> None:
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
    for name, found in ranks.items():
        if found:
            click.echo()
            print_table((name, "records"), [(value or "(none)", number) for value, number in found.most_common(top)])
