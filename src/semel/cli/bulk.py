"""`semel keys resolve-many`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, BinaryIO, Literal

import click
from msgspec.structs import replace

from semel.cli.actions import resolvable
from semel.cli.answers import find_misfit
from semel.cli.options import (
    EXIT_STORE,
    OpenedStore,
    confirm,
    count,
    duration,
    json_option,
    option,
    store_option,
    yes_option,
)
from semel.cli.output import digest, print_json
from semel.cli.scan import RecordScan
from semel.cli.verdicts import LINE_MAX, InvalidLine, LineVerdict, SeenAttempt, read_verdicts
from semel.codecs.terminal import visible
from semel.core.records import Record
from semel.errors import RecordUnreadable, StoreError
from semel.store import Filter, Resolvable

Became = Literal["resolved", "would be resolved", "refused", "invalid", "uncertain", "not tried"]
GONE = "no unknown outcome of this record is there any more: it was resolved or deleted, or it is past retention"
CHANGED = "another attempt than the one that was looked at is there now; look at it again"


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """What became of one line."""

    line: int
    became: Became
    place: SeenAttempt | None = None
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        record = {} if self.place is None else dict(zip(("tenant", "scope", "digest"), self.place.record, strict=True))
        return {"line": self.line, "result": self.became, **record, "reason": self.reason or None}

    def as_text(self) -> str:
        about = "" if self.place is None else f" {self.place.digest}"
        return f"line {self.line}:{about} {self.became}" + (f": {visible(self.reason)}" if self.reason else "")


@click.command("resolve-many")
@store_option
@click.argument("file", type=click.File("rb"))
@option("--retention", type=duration, metavar="DURATION", default="24h", help="How long repeats get the answers.")
@option("--dry-run", is_flag=True, help="Check every line and every record, and change nothing.")
@yes_option
@json_option
@click.pass_context
def resolve_many(
    ctx: click.Context, store: OpenedStore, file: BinaryIO, retention: timedelta, dry_run: bool, yes: bool, json: bool
) -> None:
    """End many unknown outcomes, as a file of JSON lines says; - reads it from stdin.

    Each line is a record as "semel stuck --json-lines" prints it, with one more member. "verdict" is "nothing-done": a
    repeat runs the work. Or it is "answer", and a further member "answer" is what repeats get: {"status": 201,
    "headers": [["name", "value"]], "json": …}, with "body" (text) or "body_base64" in place of "json".
    For a function's key it is {"format": "value.1", "json": …}: what the function would have returned.

    Every line is checked before anything changes: if one cannot be understood, nothing is done, and the command ends
    with 2. The store then acts only on the attempts that the file names, by owner and attempt. A record that changed
    since is refused, the others are resolved, and the command ends with 1. So you can give the same file again.

    \b
    Examples:
      semel stuck --limit 100000 --json-lines > unknown.jsonl
      semel keys resolve-many unknown.jsonl --dry-run
      semel keys resolve-many unknown.jsonl --yes --json
    """
    act = resolvable(store)
    read = list(read_verdicts(iter(lambda: file.readline(LINE_MAX + 1), b"")))
    invalid = [LineOutcome(each.line, "invalid", reason=each.reason) for each in read if isinstance(each, InvalidLine)]
    if invalid:
        _print(invalid, json, "Nothing was changed.")
        ctx.exit(2)
    verdicts = [each for each in read if isinstance(each, LineVerdict)]
    records = _find(store, verdicts)
    ready = [verdict for verdict in verdicts if isinstance(records[verdict.line], Record)]
    if ready and not dry_run:
        answered = sum(verdict.result is not None for verdict in ready)
        confirm(
            f"End the unknown outcome of {count(len(ready))}, so that repeats of {answered} get the given answers, and "
            f"repeats of {len(ready) - answered} run the work?",
            yes=yes,
        )
    outcomes: list[LineOutcome] = []
    is_away = False
    for verdict in verdicts:
        record = records[verdict.line]
        if isinstance(record, str):
            outcomes.append(LineOutcome(verdict.line, "refused", verdict.place, record))
        elif dry_run:
            outcomes.append(LineOutcome(verdict.line, "would be resolved", verdict.place))
        elif is_away:
            outcomes.append(LineOutcome(verdict.line, "not tried", verdict.place))
        else:
            outcomes.append(_resolve(act, record, verdict, round(retention.total_seconds() * 1000)))
            is_away = outcomes[-1].became == "uncertain"
    _print(outcomes, json, "Give the same file again when the store answers." if is_away else "")
    ctx.exit(EXIT_STORE if is_away else 1 if any(outcome.became == "refused" for outcome in outcomes) else 0)


def _resolve(act: Resolvable, record: Record, verdict: LineVerdict, retention_ms: int) -> LineOutcome:
    try:
        if act.resolve(record, verdict.result, retention_ms=retention_ms):
            return LineOutcome(verdict.line, "resolved", verdict.place)
    except RecordUnreadable as error:
        return LineOutcome(verdict.line, "refused", verdict.place, str(error))
    except StoreError as error:
        return LineOutcome(verdict.line, "uncertain", verdict.place, str(error))
    return LineOutcome(verdict.line, "refused", verdict.place, CHANGED)


def _find(opened: OpenedStore, verdicts: Sequence[LineVerdict]) -> dict[int, Record | str]:
    """The record that each line is about, or why there is none, in one walk over the unknown outcomes."""
    lines = {verdict.place.record: verdict for verdict in verdicts}
    found: dict[int, Record | str] = {verdict.line: GONE for verdict in verdicts}
    scan = RecordScan(opened.inspectable)
    for record in scan.records(Filter("unknown")) if lines else ():
        key = record.key
        verdict = lines.get((key.tenant, key.scope, digest(key.name)))
        if verdict is not None:
            same = (record.owner, record.attempt) == (verdict.place.owner, verdict.place.attempt)
            unfit = "" if verdict.result is None else find_misfit(record, verdict.result)
            found[verdict.line] = (unfit or replace(record, result=None)) if same else CHANGED
    scan.warn_unreadable()
    return found


def _print(outcomes: Sequence[LineOutcome], as_json: bool, note: str) -> None:
    totals = Counter(outcome.became for outcome in outcomes)
    if as_json:
        changed = totals["resolved"]
        results = [outcome.as_json() for outcome in outcomes]
        print_json({"action": "resolve", "changed": changed, "totals": dict(totals), "lines": results})
    else:
        for outcome in outcomes:
            click.echo(outcome.as_text())
        parts = ", ".join(f"{number} {became}" for became, number in totals.items())
        click.echo(f"{parts or 'The file has no lines'}.")
    if note:
        click.echo(note, err=True)
