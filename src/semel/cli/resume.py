"""`semel journal resume`: send what a dead process left, under its key."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from semel.cli.dispatch import hand_over, send_request
from semel.cli.exits import CallExit, CallOutcome
from semel.cli.intents import JournalChoice, SendOptions, journal_options, read_name, send_options
from semel.cli.options import json_option, option
from semel.cli.output import print_json
from semel.cli.service import ServiceAway, ask_service, origin_of
from semel.client.journal import Indeterminate, Journal
from semel.codecs.terminal import visible
from semel.core.dialects import DIALECTS, KeyDialect
from semel.core.discovery import DISCOVERED
from semel.core.journal import LIST_MAX, CallRequest, IntentEntry, ListIntents
from semel.errors import NotDiscovered
from semel.probe.report import redact

WORST_FIRST = (CallExit.DOUBT, CallExit.CHANGE, CallExit.OTHER_REQUEST, CallExit.REFUSED, CallExit.AGAIN)


@click.command()
@click.argument("name", type=read_name, required=False)
@option("--all-pending", is_flag=True, help="Every intent without an answer, one after another.")
@option(
    "--origin",
    metavar="URL",
    help="With --all-pending: only those of this service, for example https://api.example.com.",
)
@send_options
@journal_options
@option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the answer to this file, and not to stdout.",
)
@json_option
def resume(
    name: str | None,
    all_pending: bool,
    origin: str | None,
    sent: SendOptions,
    journal: JournalChoice,
    output: Path | None,
    json: bool,
) -> None:
    """Send what a dead process left: the stored request, under its key.

    The journal has no Authorization, Cookie or other secret header, so give them with -H. Intents that are in doubt or
    too old are not sent. Of one intent, output and exit status are those of "semel call". With --all-pending, stdout
    has a line for each, and the exit status is the one of them that most needs a person: 5, 7, 6, 4, 75, else 0.

    \b
    Examples:
      semel journal resume pay:order:42 -H @api-headers
      semel journal resume --all-pending --origin https://api.example.com -H @api-headers
    """
    if (name is None) is not all_pending:
        raise click.UsageError("Give either a NAME or --all-pending.")
    if not all_pending and origin is not None:
        raise click.UsageError("--origin chooses among all pending intents: add --all-pending.")
    if all_pending and output is not None:
        raise click.UsageError("--output is for the answer of one intent: leave it out with --all-pending.")
    if output is not None and not output.parent.is_dir():
        raise click.BadParameter(f"the folder {output.parent} does not exist", param_hint="--output")
    opened = journal.open(existing=True)
    if name is not None:
        entry = opened.read(name)
        if entry is None:
            raise click.UsageError(f"{journal.shown} has no intent {name!r}: semel journal list shows what it has.")
        hand_over(_resume(opened, entry, sent), sent.headers, journal.shown, json=json, output=output)
        return
    entries = _choose(opened, origin, sent)
    outcomes = _resume_all(opened, entries, sent, json=json)
    if json:
        print_json({"journal": journal.shown, "resumed": [each.describe(sent.headers) for each in outcomes]})
    elif not outcomes:
        click.echo("No intent is pending.")
    statuses = {each.status for each in outcomes}
    click.get_current_context().exit(next((each for each in WORST_FIRST if each in statuses), CallExit.DONE))


def _choose(opened: Journal, origin: str | None, sent: SendOptions) -> list[IntentEntry]:
    """All pending intents of a service. Headers that are meant for one service never go to another one."""
    found: list[IntentEntry] = []
    while page := opened.answer(ListIntents(opened.namespace, LIST_MAX, found[-1].id.name if found else "")):
        found += page
    if origin is not None:
        return [each for each in found if origin_of(each.request.url) == origin_of(origin)]
    origins = sorted({origin_of(each.request.url) for each in found})
    if sent.headers and len(origins) > 1:
        raise click.UsageError(
            f"The pending intents go to {', '.join(origins)}, and each of them would get the headers of -H: choose one "
            "with --origin."
        )
    return found


def _resume_all(opened: Journal, entries: Iterable[IntentEntry], sent: SendOptions, *, json: bool) -> list[CallOutcome]:
    outcomes: list[CallOutcome] = []
    for entry in entries:
        outcome = _resume(opened, entry, sent)
        outcomes.append(outcome)
        if outcome.status:
            click.echo(f"Error: {visible(redact(outcome.message, sent.headers))}", err=True)
        if not json:
            told = outcome.answer.status if outcome.answer is not None else "no answer"
            click.echo(f"{visible(entry.id.name)}: {told}, {outcome.state or 'not sent'}")
    return outcomes


def _resume(opened: Journal, entry: IntentEntry, sent: SendOptions) -> CallOutcome:
    given = {name.lower() for name, _ in sent.headers}
    kept = tuple(each for each in entry.request.headers if each[0].lower() not in given)
    request = CallRequest(
        entry.request.method, entry.request.url, (*sent.headers, *kept), entry.request.body, entry.request.dialect
    )
    try:
        intent = opened.resume(entry)
        dialect = _dialect_of(entry)
    except Indeterminate as error:
        return CallOutcome(entry.id.name, refusal=CallExit.DOUBT, error=str(error))
    except (NotDiscovered, ServiceAway) as error:
        return CallOutcome(entry.id.name, refusal=CallExit.AGAIN, error=f"how to send the key is not known: {error}")
    if dialect is None:
        return CallOutcome(
            entry.id.name,
            refusal=CallExit.OTHER_REQUEST,
            error=f"intent {entry.id.name!r} was begun in the dialect {entry.request.dialect!r}, which only its "
            "program knows: run that again",
        )
    return send_request(request, dialect, sent, intent)


def _dialect_of(entry: IntentEntry) -> KeyDialect | None:
    if entry.request.dialect == DISCOVERED:
        return ask_service(entry.request.url).dialect
    return DIALECTS.get(entry.request.dialect)
