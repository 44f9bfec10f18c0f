"""`semel journal`: look at the intents of a journal, finish what a dead process left, forget and purge."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

import click

from semel.cli.exits import describe_body
from semel.cli.intents import JournalChoice, journal_options, read_name
from semel.cli.options import confirm, duration, json_option, limit_option, option, yes_option
from semel.cli.output import duration as shown_duration
from semel.cli.output import moment, preview, print_json, print_table
from semel.cli.resume import resume
from semel.client.journal import Journal, wall_clock_ms
from semel.codecs.terminal import visible, visible_lines
from semel.core.journal import (
    BODY_MAX,
    LIST_MAX,
    PURGE_MAX,
    ForgetIntent,
    IntentEntry,
    IntentState,
    ListIntents,
)
from semel.probe.report import format_url

COLUMNS = ("intent", "state", "attempts", "age", "method", "url", "key")
CHOICES = ("pending", "open", "doubtful", "answered", "all")


@click.group()
def journal() -> None:
    """List, show, resume, forget and purge the intents of a journal.

    A journal has an intent for each operation that "semel call" or a program with semel.client has begun. It is pending
    until the service has answered for good.

    \b
    Examples:
      semel journal list
      semel journal resume --all-pending -H @api-headers
      semel journal purge --older-than 30d
    """


@journal.command("list")
@journal_options
@option(
    "--state",
    type=click.Choice(CHOICES),
    default="pending",
    help="Only intents in this state; pending ones are open or doubtful.",
)
@limit_option(100, "Show at most N intents.")
@json_option
def list_(journal: JournalChoice, state: str, limit: int, json: bool) -> None:
    """List intents by name: those without a final answer, or others.

    An open intent can be sent again: run its command again, or "semel journal resume". One that is held is being sent
    now. The service cannot say how a doubtful one ended, and one that is too old may be forgotten there: a person has
    to find out. URLs are shown without the values of their query.

    \b
    Examples:
      semel journal list
      semel journal list --state all --limit 1000 --json
    """
    opened = journal.open(existing=True)
    found = list(islice(entries_of(opened, state), limit + 1))
    listed, more, now_ms = found[:limit], len(found) > limit, wall_clock_ms()
    if json:
        print_json({"journal": journal.shown, "intents": [_describe(each, now_ms) for each in listed], "more": more})
        return
    if listed:
        print_table(COLUMNS, [_row(each, now_ms) for each in listed])
    else:
        click.echo("No intent matches." if state != "pending" else "No intent is pending.")
    if more:
        click.echo(f"There are more than these {limit}: raise --limit.", err=True)


@journal.command()
@click.argument("name", type=read_name)
@journal_options
@option("--body", is_flag=True, help="Show the bodies of the request and of the answer, too.")
@json_option
def show(name: str, journal: JournalChoice, body: bool, json: bool) -> None:
    """Show one intent: its request, its answer if there is one, and what to do if there is none.

    Bodies are only shown with --body. Of the headers of the request, the journal has those that it keeps.

    \b
    Examples:
      semel journal show pay:order:42
      semel journal show pay:order:42 --body --json
    """
    entry = find_entry(journal, journal.open(existing=True), name)
    now_ms = wall_clock_ms()
    shown = _describe(entry, now_ms) | {"url": entry.request.url}
    request, answer = entry.request, entry.answer
    if json:
        asked: dict[str, Any] = {"headers": [list(each) for each in request.headers], "body_size": len(request.body)}
        kept: dict[str, Any] | None = None
        if body:
            asked |= describe_body(request.body)
        if answer is not None:
            kept = {"status": answer.status, "headers": [list(each) for each in answer.headers]}
            kept |= {"body_size": answer.body_size} | (describe_body(answer.body) if body else {})
        print_json(shown | {"journal": journal.shown, "request": asked, "answer": kept})
        return
    for member, value in shown.items():
        if value not in (None, ""):
            click.echo(f"{member.replace('_', ' '):<12} {visible(value)}")
    click.echo(f"{'what to do':<12} {visible(_next_step(entry, now_ms))}")
    _print_message(f"{request.method} {request.url}", request.headers, request.body, len(request.body), body)
    if answer is not None:
        _print_message(f"HTTP {answer.status}", answer.headers, answer.body, answer.body_size, body)


journal.add_command(resume)


@journal.command()
@click.argument("name", type=read_name)
@journal_options
@yes_option
@json_option
def forget(name: str, journal: JournalChoice, yes: bool, json: bool) -> None:
    """Delete an intent: the next call under its name is a NEW operation, with a new key.

    Do it when you have found out at the service how the operation ended. If it took effect and you call it again, it
    takes effect twice. An intent that is being sent now is not deleted.

    \b
    Examples:
      semel journal forget pay:order:42
      semel journal forget report:2026-11 --yes --json
    """
    opened = journal.open(existing=True)
    entry = find_entry(journal, opened, name)
    state = "has its answer" if entry.state is IntentState.ANSWERED else "has no answer, and may have taken effect"
    confirm(
        f"Forget intent {name!r}, which {state}, so that the next call under this name is sent under a new key, as "
        "another operation?",
        yes=yes,
    )
    if not opened.answer(ForgetIntent(entry.id, entry.key)):
        raise click.ClickException(f"intent {name!r} stays: it is being sent now, or it changed meanwhile.")
    if json:
        print_json({"action": "forget", "changed": 1})
    else:
        click.echo(f"Forgot intent {visible(name)}.")


@journal.command()
@journal_options
@option(
    "--older-than",
    type=duration,
    metavar="DURATION",
    required=True,
    help="Only intents that were answered at least this long ago.",
)
@option("--pending", is_flag=True, help="Forget those without an answer, too, that began at least this long ago.")
@yes_option
@json_option
def purge(journal: JournalChoice, older_than: timedelta, pending: bool, yes: bool, json: bool) -> None:
    """Delete intents that were answered long ago.

    Calling one of them again sends it anew, under a new key: keep them for as long as a script may be run again. It
    does not prompt. Intents without an answer stay, unless --pending says otherwise: then it asks first.

    \b
    Examples:
      semel journal purge --older-than 30d
      semel journal purge --older-than 365d --pending --yes
    """
    opened = journal.open(existing=True)
    before_ms = wall_clock_ms() - older_than // timedelta(milliseconds=1)
    left = [each for each in entries_of(opened, "pending") if each.created_ms <= before_ms] if pending else []
    if left:
        plural = "intent that has" if len(left) == 1 else "intents that have"
        confirm(
            f"Forget {len(left)} {plural} no answer, and may have taken effect, so that the next call under such a "
            "name is sent under a new key, as another operation?",
            yes=yes,
        )
    purged = 0
    while gone := opened.purge(older=older_than, limit=PURGE_MAX):
        purged += gone
    purged += sum(opened.answer(ForgetIntent(each.id, each.key)) for each in left)
    if json:
        print_json({"action": "purge", "changed": purged})
    else:
        click.echo(f"Purged {purged} {'intent' if purged == 1 else 'intents'}.")


def entries_of(opened: Journal, state: str) -> Iterator[IntentEntry]:
    """The intents in a state, by name, page by page; of all, the pending ones first."""
    for answered in {"answered": (True,), "all": (False, True)}.get(state, (False,)):
        after = ""
        while page := opened.answer(ListIntents(opened.namespace, LIST_MAX, after, answered)):
            after = page[-1].id.name
            yield from (each for each in page if state in ("pending", "all", each.state.value))


def find_entry(choice: JournalChoice, opened: Journal, name: str) -> IntentEntry:
    entry = opened.read(name)
    if entry is None:
        within = f" in the namespace {opened.namespace!r}" if opened.namespace else ""
        raise click.ClickException(f"{choice.shown} has no intent {name!r}{within}; it may be forgotten or purged.")
    return entry


def _shown_state(entry: IntentEntry, now_ms: int) -> str:
    if entry.state is not IntentState.OPEN:
        return entry.state.value
    if entry.is_held(now_ms):
        return "held"
    return "too old" if entry.is_too_old(now_ms) else "open"


def _next_step(entry: IntentEntry, now_ms: int) -> str:
    name = shlex.quote(entry.id.name)
    match _shown_state(entry, now_ms):
        case "answered":
            return "nothing: calling it again gives this answer, and sends nothing"
        case "held":
            return "wait: a process is sending it, or died less than its lease ago"
        case "open":
            return f"run its command again, or semel journal resume {name}: its key stays the same"
        case _:
            return f"find out at the service whether it took effect; then semel journal forget {name} frees the name"


def _describe(entry: IntentEntry, now_ms: int) -> dict[str, Any]:
    """An intent as JSON, without headers and bodies."""
    answered = entry.answer is not None
    return {
        "intent": entry.id.name,
        "namespace": entry.id.namespace,
        "key": entry.key,
        "state": entry.state.value,
        "held": entry.is_held(now_ms),
        "too_old": not answered and entry.is_too_old(now_ms),
        "method": entry.request.method,
        "url": format_url(entry.request.url),
        "dialect": entry.request.dialect,
        "attempts": entry.attempts,
        "created": moment(entry.created_ms),
        "send_until": moment(entry.created_ms + entry.max_age_ms),
        "answered": moment(entry.finished_ms) if answered else None,
        "status": entry.answer.status if entry.answer is not None else None,
        "error": entry.error or None,
    }


def _row(entry: IntentEntry, now_ms: int) -> tuple[object, ...]:
    age = shown_duration(now_ms - entry.created_ms)
    url = format_url(entry.request.url)
    return entry.id.name, _shown_state(entry, now_ms), entry.attempts, age, entry.request.method, url, entry.key


def _print_message(
    first: str, headers: tuple[tuple[str, str], ...], data: bytes | None, size: int, with_body: bool
) -> None:
    click.echo(f"\n{visible(first)}")
    for name, value in headers:
        click.echo(f"{visible(name)}: {visible(value)}")
    if data is None:
        click.echo(f"({size} bytes, which were too large to be kept)")
    elif with_body:
        click.echo(f"\n{visible_lines(str(preview(data, BODY_MAX)['body']))}")
    elif size:
        click.echo(f"({size} bytes; --body shows them)")
