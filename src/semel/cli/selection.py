"""Which records a command is about: one that is named, or all that match."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from msgspec.structs import replace

from semel.cli.options import OpenedStore, option
from semel.cli.output import digest
from semel.cli.scan import RecordScan
from semel.codecs.terminal import visible
from semel.core.records import Key, Record
from semel.store import Filter

F = TypeVar("F", bound=Callable[..., Any])
SHOWN_MAX = 5
DIGEST_SIZE = 16
DIGEST = re.compile(rf"[0-9a-f]{{4,{DIGEST_SIZE}}}")
"""A digest as lists and logs show it, or at least the first four characters of one."""
DIGEST_HELP = "KEY is a digest that lists and logs show, or its beginning, and not a name."


def key_arguments(command: F) -> F:
    """The key, and the options that tell it from other keys with its name."""
    given: tuple[Callable[[F], F], ...] = (
        click.argument("key"),
        option("--tenant", help="The tenant of the key, if several have one of that name."),
        option("--scope", help="The scope of the key, if several have one of that name."),
        option("--digest", is_flag=True, help=DIGEST_HELP),
    )
    for each in reversed(given):
        command = each(command)
    return command


def find_record(opened: OpenedStore, key: str, tenant: str | None, scope: str | None, by_digest: bool) -> Record:
    """The one record with this name, this digest, or a digest that begins with this text.

    If tenant, scope and name are given, the store is asked for that key; otherwise its records are searched.
    """
    if by_digest and not DIGEST.fullmatch(key):
        raise click.UsageError(
            f"{visible(key)!r} is not a digest: it has {DIGEST_SIZE} characters of 0-9a-f, of which 4 may do."
        )
    if tenant is not None and scope is not None and not by_digest and (found := _get(opened, tenant, scope, key)):
        return found
    may_be_digest = DIGEST.fullmatch(key) is not None
    scan = RecordScan(opened.inspectable)
    by_name: list[Record] = []
    others: list[Record] = []
    for record in scan.records(Filter(tenant=tenant, scope=scope, name_prefix="" if may_be_digest else key)):
        if record.key.name == key and not by_digest:
            by_name.append(record)
        elif may_be_digest and digest(record.key.name).startswith(key):
            others.append(record)
    scan.warn_unreadable()
    if not by_name and not others:
        raise click.ClickException(f"{opened.shown} has no such record; it may be past retention.")
    if len(by_name) + len(others) > 1:
        raise click.UsageError(_ambiguity(key, by_name, others))
    return (by_name or others)[0]


def _get(opened: OpenedStore, tenant: str, scope: str, name: str) -> Record | None:
    try:
        return opened.store.get(Key(tenant, scope, name))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _ambiguity(key: str, by_name: Sequence[Record], others: Sequence[Record]) -> str:
    if by_name and others:
        text = (
            f"{visible(key)!r} is the name of a record and the digest of another: add --digest for the other, or "
            "--tenant and --scope for the name"
        )
    elif len({record.key.name for record in others}) > 1:
        text = f"{len(others)} records have a digest that begins with {key}; give one of these in full"
    else:
        text = f"{len(by_name) + len(others)} records have this key; add one of these"
    places = "".join(
        f"\n  {digest(each.key.name)} --tenant {visible(each.key.tenant)!r} --scope {visible(each.key.scope)!r}"
        for each in [*by_name, *others][:SHOWN_MAX]
    )
    return f"{text}:{places}"


def find_records(
    opened: OpenedStore, chosen: Filter, wanted: Callable[[Record], bool], limit: int
) -> tuple[list[Record], bool]:
    """Up to `limit` records, without their answers, and whether there are more."""
    found: list[Record] = []
    scan, more = RecordScan(opened.inspectable), False
    for record in scan.records(chosen):
        if wanted(record):
            if len(found) == limit:
                more = True
                break
            found.append(replace(record, result=None))
    scan.warn_unreadable()
    return found, more
