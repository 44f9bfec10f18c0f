"""The order of records in lists. Only records that were read are sorted; the list says whether those were all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from typing import Any, TypeVar, cast

import click
from msgspec.structs import replace

from semel.cli.options import (
    COUNT_MAX,
    Form,
    form_of,
    json_option,
    limit_option,
    lines_option,
    names_option,
    option,
)
from semel.cli.scan import RecordScan
from semel.core.records import Record
from semel.store import seen_as

F = TypeVar("F", bound=Callable[..., Any])
SCAN_MAX = 10_000
LATEST_MS = 1 << 63
FIELDS: Mapping[str, Callable[[Record, int], Any]] = {
    "created": lambda record, now_ms: record.created_ms,
    "completed": lambda record, now_ms: LATEST_MS if record.completed_ms is None else record.completed_ms,
    "expires": lambda record, now_ms: record.expires_ms,
    "state": lambda record, now_ms: seen_as(record, now_ms),
    "attempt": lambda record, now_ms: record.attempt,
    "tenant": lambda record, now_ms: record.key.tenant,
    "scope": lambda record, now_ms: record.key.scope,
}


@dataclass(frozen=True, slots=True)
class Order:
    field: str
    scan_max: int
    reverse: bool


@dataclass(frozen=True, slots=True)
class RecordList:
    """A list of records. `order` says how it was sorted, and `scanned` how many records were read for that."""

    records: list[Record]
    more: bool
    order: Order | None = None
    scanned: int = 0
    scanned_all: bool = True


def sort_options(fields: Iterable[str], things: str) -> Callable[[F], F]:
    """--sort by one of `fields`, --reverse and --scan-max, for a list of these things; `order_of` reads them."""
    given: tuple[Callable[[F], F], ...] = (
        option("--sort", type=click.Choice(list(fields)), help="Sort by this, the earliest or least first."),
        option("--reverse", is_flag=True, help="With --sort: the latest or greatest first."),
        option(
            "--scan-max",
            type=click.IntRange(1, COUNT_MAX),
            help=f"With --sort: read and sort at most N {things}, {SCAN_MAX} by default.",
            metavar="N",
        ),
    )

    def add(command: F) -> F:
        for each in reversed(given):
            command = each(command)
        return command

    return add


def order_options(command: F) -> F:
    return sort_options(FIELDS, "records")(command)


def order_of(sort: str | None, reverse: bool, scan_max: int | None) -> Order | None:
    if sort is not None:
        return Order(sort, scan_max or SCAN_MAX, reverse)
    if reverse or scan_max is not None:
        raise click.UsageError("--reverse and --scan-max say how to sort: add --sort.")
    return None


@dataclass(frozen=True, slots=True)
class Listing:
    """How many records a command lists, in which order and form, and whether with the names of keys."""

    limit: int
    order: Order | None
    names: bool
    form: Form


def list_options(command: F) -> F:
    """The options of commands that list records, which take them as one `listing`."""

    @wraps(command)
    def take_listing(
        *args: Any,
        limit: int,
        sort: str | None,
        reverse: bool,
        scan_max: int | None,
        names: bool,
        json: bool,
        json_lines: bool,
        **options: Any,
    ) -> Any:
        form, order = form_of(json, json_lines), order_of(sort, reverse, scan_max)
        return command(*args, listing=Listing(limit, order, names, form), **options)

    made = cast(F, take_listing)
    limited: Callable[[F], F] = limit_option(100, "Show at most N records.")
    for each in (lines_option, json_option, names_option, order_options, limited):
        made = each(made)
    return made


def first_of(records: Iterator[Record], limit: int, order: Order | None, scan: RecordScan) -> RecordList:
    """The first `limit` records in the order that is asked for, else in the store's own."""
    if order is None:
        found = list(islice(records, limit + 1))
        return RecordList(found[:limit], more=len(found) > limit)
    read = [replace(record, result=None) for record in islice(records, order.scan_max)]
    scanned_all = next(records, None) is None
    now_ms, value = scan.now_ms, FIELDS[order.field]
    read.sort(key=lambda record: (record.key.tenant, record.key.scope, record.key.name))
    read.sort(key=lambda record: value(record, now_ms), reverse=order.reverse)
    return RecordList(read[:limit], len(read) > limit or not scanned_all, order, len(read), scanned_all)
