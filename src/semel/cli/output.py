"""What commands print: tables for people, JSON with stable member names for programs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

import click

from semel.cli.options import Form
from semel.cli.order import RecordList
from semel.cli.scan import RecordScan
from semel.codecs import responses, values
from semel.codecs.description import describe_value
from semel.codecs.responses import AnswerNotKept
from semel.codecs.terminal import json_text, visible
from semel.core.records import Key, Record, Result
from semel.errors import RecordUnreadable
from semel.store import seen_as

COLUMNS = ("key", "state", "attempt", "age", "expires in", "tenant", "scope")


def digest(name: str) -> str:
    """The digest that lists and logs show in place of a key's name."""
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


def summary(record: Record, now_ms: int, *, names: bool) -> dict[str, Any]:
    """A record as JSON, without its answer. `owner` and `attempt` say which attempt it is."""
    key = record.key
    return {
        "digest": digest(key.name),
        "name": key.name if names else None,
        "tenant": key.tenant,
        "scope": key.scope,
        "state": seen_as(record, now_ms),
        "attempt": record.attempt,
        "owner": record.owner,
        "created": moment(record.created_ms),
        "lease_until": moment(record.lease_until_ms) if record.in_progress() else None,
        "completed": moment(record.completed_ms),
        "expires": moment(record.expires_ms),
    }


def row(record: Record, now_ms: int, *, names: bool) -> tuple[object, ...]:
    """A record as a line of a table of `COLUMNS`."""
    key = record.key
    shown = key.name if names else digest(key.name)
    age, left = duration(now_ms - record.created_ms), duration(record.expires_ms - now_ms)
    return shown, seen_as(record, now_ms), record.attempt, age, left, key.tenant, key.scope


def print_records(listed: RecordList, scan: RecordScan, *, names: bool, form: Form) -> None:
    scan.warn_unreadable()
    records = listed.records
    match form:
        case "lines":
            for record in records:
                click.echo(json_text(summary(record, scan.now_ms, names=names)))
            if listed.more:
                click.echo(_how_to_see_more(listed), err=True)
        case "json":
            found = [summary(record, scan.now_ms, names=names) for record in records]
            print_json(
                {"records": found, "more": listed.more, "unreadable": scan.unreadable_as_json()} | _order(listed)
            )
        case "table":
            if records:
                print_table(COLUMNS, [row(record, scan.now_ms, names=names) for record in records])
            else:
                click.echo("No record matches.")
            if listed.more:
                click.echo(_how_to_see_more(listed), err=True)
        case _:
            assert_never(form)


def _order(listed: RecordList) -> dict[str, Any]:
    """How a sorted list came to be, as members of its document."""
    if listed.order is None:
        return {}
    return {"sorted_by": listed.order.field, "scanned": listed.scanned, "scanned_all": listed.scanned_all}


def _how_to_see_more(listed: RecordList) -> str:
    if not listed.scanned_all:
        return (
            f"Only the first {listed.scanned} records, in the store's own order, were sorted, and there are more: "
            "raise --scan-max, or choose more narrowly."
        )
    return f"There are more than these {len(listed.records)}: raise --limit, or choose more narrowly."


def answer(result: Result | None, body_max: int) -> dict[str, Any] | None:
    """A stored answer as JSON: decoded if its format is known, else the beginning of its bytes."""
    if result is None:
        return None
    shown: dict[str, Any] = {"format": result.format, "bytes": len(result.payload)}
    if result.format in (values.FORMAT, values.ERROR):
        told = "returned" if result.format == values.FORMAT else "raised"
        with suppress(Exception):  # a damaged one is shown as bytes
            return shown | {told: describe_value(result.payload)}
    if result.format == values.TOMBSTONE:
        return shown | {"kept": False, "reason": result.payload.decode(errors="replace")}
    try:
        response = responses.decode(result)
    except RecordUnreadable:
        return shown | preview(result.payload, body_max)
    if isinstance(response, AnswerNotKept):
        return shown | {"kept": False, "ended": response is AnswerNotKept.ENDED}
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in response.headers]
    reason = {} if response.reason is None else {"reason": response.reason.decode("latin-1")}
    return shown | {"status": response.status, **reason, "headers": headers} | preview(response.body, body_max)


def preview(data: bytes, most: int) -> dict[str, Any]:
    """The beginning of a body, as text if it is text."""
    start = data[:most]
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        cut = len(start) < len(data) and error.start >= len(start) - 3  # in the middle of a character
        text = start[: error.start].decode() if cut else f"(binary) {start.hex(' ')}"
    return {"body": text, "truncated": len(data) > most}
