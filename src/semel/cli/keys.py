"""`semel keys`: look at records. What changes them is in `ending`."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice

import click

from semel.cli.ending import delete, expire, release, resolve
from semel.cli.finding import key_arguments, one_record
from semel.cli.options import (
    Opened,
    filter_of,
    filter_options,
    json_option,
    limit_option,
    names_option,
    option,
    store_option,
)
from semel.cli.showing import Skipped, answer, print_json, print_records, records_of, summary
from semel.codecs.printable import visible, visible_lines
from semel.store import StateFilter


@click.group()
def keys() -> None:
    """List, show, resolve, release, expire and delete records.

    Lists show a digest in place of a key's name, the same that logs show; give it back with --digest, or ask for names
    with --names.

    \b
    Examples:
      semel keys list --state unknown --older-than 1h
      semel keys show 3f2a9c0011223344 --digest
      semel keys resolve order-1 --tenant shop --nothing-done
    """


@keys.command("list")
@store_option
@filter_options
@limit_option(100, "Show at most so many.")
@names_option
@json_option
def list_(
    store: Opened,
    state: StateFilter | None,
    tenant: str | None,
    scope: str | None,
    prefix: str,
    older_than: timedelta,
    limit: int,
    names: bool,
    json: bool,
) -> None:
    """List records that are not past retention.

    \b
    Examples:
      semel keys list
      semel keys list --tenant shop --scope 'POST /payments' --names
      semel keys list --state failed --json
    """
    chosen = filter_of(state, tenant, scope, prefix, older_than)
    skipped = Skipped()
    found = list(islice(records_of(store.inspectable, chosen, skipped), limit + 1))
    print_records(found[:limit], skipped, more=len(found) > limit, names=names, as_json=json)


@keys.command()
@store_option
@key_arguments
@option("--body-max", type=click.IntRange(0), default=1000, help="Show at most so many bytes of the answer's body.")
@names_option
@json_option
def show(
    store: Opened,
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
      semel keys show 3f2a9c0011223344 --digest --json
    """
    record = one_record(store, key, tenant, scope, digest)
    shown = summary(record, names=names) | {"owner": record.owner, "fingerprint": record.fingerprint}
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
        click.echo("\nIt was too large to keep.")
        return
    click.echo()
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


for command in (resolve, release, expire, delete):
    keys.add_command(command)
