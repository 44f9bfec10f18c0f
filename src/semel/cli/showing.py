"""What commands print: tables for people, JSON with stable member names for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import click

from semel.clock import wall_ms
from semel.codecs import responses
from semel.codecs.printable import json_text, visible
from semel.codecs.responses import NotKept
from semel.core.records import Key, Record, Result
from semel.errors import RecordUnreadable
from semel.store import Filter, Inspectable, UnreadableRecord, seen_as

PAGE = 200
TOLD_MAX = 5
SKIPPED_MAX = 1_000
COLUMNS = ("key", "state", "attempt", "age", "tenant", "scope")


def digest(name: str) -> str:
    """What stands for a key's name in lists; logs show the same."""
    return Key("", "", name).name_digest


def print_json(value: object) -> None:
    click.echo(json_text(value, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    texts = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, (name, *(row[at] for row in texts)))) for at, name in enumerate(columns)]
    for row in ([name.upper() for name in columns], *texts):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def duration(ms: float) -> str:
    """Two units at most: 3d 4h, 5m 2s, 12s."""
    left = max(0, round(ms / 1000))
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def seconds(value: timedelta) -> str:
    return duration(value.total_seconds() * 1000)


def moment(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


class Skipped:
    """Records that could not be read on the way. They stop no command, and every command tells of them."""

    def __init__(self) -> None:
        self._found: dict[str, UnreadableRecord] = {}
        self.count = 0

    def add(self, unreadable: Sequence[UnreadableRecord]) -> None:
        for each in unreadable:
            if each.place not in self._found:
                self.count += 1
                if len(self._found) < SKIPPED_MAX:
                    self._found[each.place] = each

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self._found.values()]

    def tell(self) -> None:
        """A line for each of the first ones, where it does not mix with what was asked for."""
        for each in islice(self._found.values(), TOLD_MAX):
            click.echo(f"Skipped, because it cannot be read: {visible(each.place)}: {visible(each.reason)}", err=True)
        if self.count > TOLD_MAX:
            click.echo(f"Skipped {self.count - TOLD_MAX} more that cannot be read.", err=True)


def records_of(store: Inspectable, chosen: Filter, skipped: Skipped | None = None) -> Iterator[Record]:
    """All records that match, page by page; what cannot be read goes to `skipped`."""
    cursor: str | None = None
    while True:
        page = store.scan(chosen, cursor=cursor, limit=PAGE)
        if skipped is not None:
            skipped.add(page.unreadable)
        yield from page.records
        cursor = page.cursor
        if cursor is None:
            return


def summary(record: Record, *, names: bool) -> dict[str, Any]:
    """A record as JSON, without its answer."""
    key = record.key
    return {
        "digest": digest(key.name),
        "name": key.name if names else None,
        "tenant": key.tenant,
        "scope": key.scope,
        "state": seen_as(record, wall_ms()),
        "attempt": record.attempt,
        "created": moment(record.created_ms),
        "lease_until": moment(record.lease_until_ms) if record.in_progress() else None,
        "completed": moment(record.completed_ms),
        "expires": moment(record.expires_ms),
    }


def row(record: Record, *, names: bool) -> tuple[object, ...]:
    """A record as a line of a table of `COLUMNS`."""
    key, now_ms = record.key, wall_ms()
    shown = key.name if names else digest(key.name)
    return shown, seen_as(record, now_ms), record.attempt, duration(now_ms - record.created_ms), key.tenant, key.scope


def print_records(records: Sequence[Record], skipped: Skipped, *, more: bool, names: bool, as_json: bool) -> None:
    skipped.tell()
    if as_json:
        found = [summary(record, names=names) for record in records]
        print_json({"records": found, "more": more, "unreadable": skipped.as_json()})
        return
    if records:
        print_table(COLUMNS, [row(record, names=names) for record in records])
    else:
        click.echo("No record matches.")
    if more:
        click.echo(f"There are more than these {len(records)}: raise --limit, or choose more narrowly.", err=True)


def answer(result: Result | None, body_max: int) -> dict[str, Any] | None:
    """A stored answer as JSON: what it says, if the format is known here, and a part of its bytes in any case."""
    if result is None:
        return None
    shown: dict[str, Any] = {"format": result.format, "bytes": len(result.payload)}
    try:
        response = responses.decode(result)
    except RecordUnreadable:
        return shown | preview(result.payload, body_max)
    if isinstance(response, NotKept):
        return shown | {"kept": False, "ended": response is NotKept.ENDED}
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in response.headers]
    return shown | {"status": response.status, "headers": headers} | preview(response.body, body_max)


def preview(data: bytes, most: int) -> dict[str, Any]:
    """The beginning of a body, as text if it is text."""
    start = data[:most]
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        cut = len(start) < len(data) and error.start >= len(start) - 3  # in the middle of a character
        text = start[: error.start].decode() if cut else f"(binary) {start.hex(' ')}"
    return {"body": text, "truncated": len(data) > most}
