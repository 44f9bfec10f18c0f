"""`semel doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from semel.cli.backlog import examine_outbox
from semel.cli.expiry import describe_near_end, read_unknown
from semel.cli.options import EXIT_STORE, OpenedStore, json_option, new_store_option
from semel.cli.output import print_json
from semel.cli.scan import RecordScan
from semel.codecs.terminal import visible
from semel.core.records import Key
from semel.errors import StoreError, StoreMisconfigured
from semel.store import Examinable, Finding, Inspectable
from semel.stores import examination

LOOKED_AT = 1_000
MARKS = {"ok": ("✔", "green"), "info": ("·", "blue"), "warning": ("!", "yellow"), "problem": ("✘", "red")}


@click.command()
@new_store_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, store: OpenedStore, json: bool) -> None:
    """Examine a store: can it keep what it promises?

    Looks at the connection, the schema, the server's version and its settings for durability, eviction and cleaning up,
    the clocks, the latency and the outbox, and says what this store can and cannot promise. Each ✘ comes with the way
    out. Changes nothing. Ends with 1 if there is a ✘, and with 3 if the store cannot be reached.

    \b
    Examples:
      semel doctor --store postgresql://localhost/shop
      semel doctor --store redis://localhost --json
    """
    findings = list(examine(store))
    # Reading records would create a schema that is not there.
    if any(finding.title == "schema" and finding.level == "ok" for finding in findings):
        findings += [*find_unreadable(store), *find_unknown_outcomes(store), *examine_outbox(store.store)]
    sound = all(finding.level != "problem" for finding in findings)
    if json:
        print_json({"store": store.shown, "ok": sound, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings)
    is_away = any(finding.title == "connection" and finding.level == "problem" for finding in findings)
    ctx.exit(0 if sound else EXIT_STORE if is_away else 1)


def examine(opened: OpenedStore) -> Sequence[Finding]:
    """The store's findings about itself, or why it has none."""
    store = opened.store
    try:
        if isinstance(store, Examinable):
            return store.examine()
        probe = Key("semel", "semel doctor", "probe")
        latency = examination.latency(lambda: store.get(probe))
        connected = Finding("connection", "ok", f"{opened.shown} answers")
        return [connected, latency, Finding("settings", "info", "this store does not tell more about itself")]
    except StoreMisconfigured as error:
        return [Finding("connection", "problem", str(error), "change the server, or the URL, as the message says")]
    except StoreError as error:
        fix = "see that the server runs, and that it is the one that --store names and lets this machine in"
        return [Finding("connection", "problem", str(error), fix)]


def find_unreadable(opened: OpenedStore) -> Sequence[Finding]:
    """Which of the first records cannot be read. `semel stats` counts all of them."""
    try:
        page = opened.store.scan(limit=LOOKED_AT) if isinstance(opened.store, Inspectable) else None
    except StoreError:  # among the findings already
        return []
    if page is None or not page.unreadable:
        return []
    first = page.unreadable[0]
    looked = len(page.records) + len(page.unreadable)
    return [
        Finding(
            "records",
            "warning",
            f"{len(page.unreadable)} of {looked} records cannot be read, and their keys are refused; the first is "
            f"{first.place}: {first.reason}",
            "upgrade semel if a newer version wrote them, else find out what else writes there; semel stats counts all",
        )
    ]


def find_unknown_outcomes(opened: OpenedStore) -> Sequence[Finding]:
    """Unknown outcomes, if there are any, and how many of them are about to be forgotten."""
    if not isinstance(opened.store, Inspectable):
        return []
    scan = RecordScan(opened.store)
    try:
        unknown = read_unknown(scan)
    except StoreError:  # among the findings already
        return []
    if not unknown:
        return []
    detail = "the outcome of 1 operation is unknown" if len(unknown) == 1 else f"{len(unknown)} outcomes are unknown"
    near = describe_near_end(unknown, scan.now_ms)
    fix = "semel stuck lists them; find out how they ended, then semel keys resolve or semel keys release"
    return [Finding("outcomes", "warning", f"{detail}; {near}" if near else detail, fix)]


def _print(findings: Sequence[Finding]) -> None:
    width = max(len(finding.title) for finding in findings)
    for finding in findings:
        mark, colour = MARKS[finding.level]
        click.echo(f"{click.style(mark, fg=colour)} {finding.title:<{width}}  {visible(finding.detail)}")
        if finding.fix:
            click.echo(f"  {'':<{width}}  → {visible(finding.fix)}")
