"""`semel keys`: look at records. What changes them is in `actions`."""

from __future__ import annotations

from datetime import timedelta

import click

from semel.cli.actions import delete, expire, release, resolve
from semel.cli.bulk import resolve_many
from semel.cli.options import (
    COUNT_MAX,
    OpenedStore,
    filter_of,
    filter_options,
    json_option,
    names_option,
    option,
    store_option,
)
from semel.cli.order import Listing, first_of, list_options
from semel.cli.output import answer, print_json, print_records, summary
from semel.cli.scan import RecordScan
from semel.cli.selection import find_record, key_arguments
from semel.codecs.terminal import json_text, visible, visible_lines
from semel.store import StateFilter


@click.group()
def keys() -> None:
    """List, show, resolve, release, expire and delete records.

    Lists show a digest in place of a key's name, the same that logs show. Every command takes it in place of the name,
    in full or its first characters. --names shows names.

    \b
    Examples:
      semel keys list --state unknown --older-than 1h
      semel keys show 3f2a9c00
      semel keys resolve order-1 --tenant shop --nothing-done
    """


@keys.command("list")
@store_option
@filter_options
@list_options
def list_(
    store: OpenedStore,
    state: StateFilter | None,
    tenant: str | None,
    scope: str | None,
    prefix: str,
    older_than: timedelta,
    listing: Listing,
) -> None:
    """List records that are not past retention.

    The order is the store's own, which means nothing. --sort reads up to --scan-max records that match, sorts those and
    shows the first --limit of them. The list says when there are more than it has read.

    \b
    Examples:
      semel keys list
      semel keys list --sort expires --limit 20
      semel keys list --tenant shop --scope 'POST /payments' --names
      semel keys list --state failed --json
    """
    scan = RecordScan(store.inspectable)
    records = scan.records(filter_of(state, tenant, scope, prefix, older_than))
    print_records(first_of(records, listing.limit, listing.order, scan), scan, names=listing.names, form=listing.form)


@keys.command()
@store_option
@key_arguments
@option("--body-max", type=click.IntRange(0, COUNT_MAX), default=1000, help="Show at most N bytes of the body.")
@names_option
@json_option
def show(
    store: OpenedStore,
    key: str,
    tenant: str | None,
    scope: str | None,
    digest: bool,
    body_max: int,
    names: bool,
    json: bool,
) -> None:
    """Show one record with its stored answer: status, headers and the beginning of the body.

    \b
    Examples:
      semel keys show order-1 --tenant shop --scope 'POST /payments'
      semel keys show 3f2a9c0011223344 --json
    """
    record = find_record(store, key, tenant, scope, digest)
    shown = summary(record, store.now_ms(), names=names) | {"fingerprint": record.fingerprint}
    stored = answer(record.result, body_max)
    if json:
        print_json(shown | {"answer": stored})
        return
    for name, value in shown.items():
        if value is not None:
            click.echo(f"{name.replace('_', ' '):<12} {visible(value)}")
    if stored is not None:
        _print_answer(stored)


def _print_answer(stored: dict[str, object]) -> None:
    click.echo(f"{'answer':<12} {visible(stored['format'])}, {stored['bytes']} bytes")
    if "kept" in stored:
        click.echo(f"\n{visible(stored.get('reason', 'It was too large to keep.'))}")
        return
    click.echo()
    for told in ("returned", "raised"):
        if told in stored:
            click.echo(f"{told} {json_text(stored[told], indent=2)}")
            return
    if "status" in stored:
        click.echo(f"HTTP {stored['status']}")
        headers = stored["headers"]
        assert isinstance(headers, list)
        for name, value in headers:
            click.echo(f"{visible(name)}: {visible(value)}")
        click.echo()
    click.echo(visible_lines(str(stored["body"])))
    if stored["truncated"]:
        click.echo("… (--body-max shows more)", err=True)


for command in (resolve, resolve_many, release, expire, delete):
    keys.add_command(command)
