"""Which records a command is about: one that is named, or all that match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from msgspec.structs import replace

from semel.cli.options import Opened, option
from semel.cli.showing import Skipped, digest, records_of
from semel.codecs.printable import visible
from semel.core.records import Key, Record
from semel.store import Filter

F = TypeVar("F", bound=Callable[..., Any])
SHOWN_MAX = 5


def key_arguments(command: F) -> F:
    """The key that is named, and what tells it from others of the same name."""
    given: tuple[Callable[[F], F], ...] = (
        click.argument("key"),
        option("--tenant", help="The tenant of the key, if several have one of that name."),
        option("--scope", help="The scope of the key, if several have one of that name."),
        option("--digest", is_flag=True, help="KEY is the digest that lists and logs show."),
    )
    for each in reversed(given):
        command = each(command)
    return command


def one_record(opened: Opened, name: str, tenant: str | None, scope: str | None, by_digest: bool) -> Record:
    """The record that is meant. Its place is asked for directly when it is named in full, and searched otherwise."""
    if tenant is not None and scope is not None and not by_digest:
        try:
            found = opened.store.get(Key(tenant, scope, name))
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        records = [] if found is None else [found]
    else:
        chosen = Filter(tenant=tenant, scope=scope, name_prefix="" if by_digest else name)
        skipped = Skipped()
        records = [
            each for each in records_of(opened.inspectable, chosen, skipped) if _named(each.key, name, by_digest)
        ]
        skipped.tell()
    if not records:
        raise click.ClickException(f"{opened.shown} has no such record; it may be past retention.")
    if len(records) > 1:
        places = "".join(
            f"\n  --tenant {visible(each.key.tenant)!r} --scope {visible(each.key.scope)!r}"
            for each in records[:SHOWN_MAX]
        )
        raise click.UsageError(f"{len(records)} records have this key; add one of:{places}")
    return records[0]


def _named(key: Key, name: str, by_digest: bool) -> bool:
    return (digest(key.name) if by_digest else key.name) == name


def matching(opened: Opened, chosen: Filter, wanted: Callable[[Record], bool], limit: int) -> tuple[list[Record], bool]:
    """Up to `limit` records, without their answers, and whether there are more."""
    found: list[Record] = []
    skipped, more = Skipped(), False
    for record in records_of(opened.inspectable, chosen, skipped):
        if wanted(record):
            if len(found) == limit:
                more = True
                break
            found.append(replace(record, result=None))
    skipped.tell()
    return found, more
