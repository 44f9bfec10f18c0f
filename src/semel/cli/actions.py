"""`semel keys resolve`, `release`, `expire` and `delete`: what an operator may decide about a record.

Each acts on exactly the record that was read. The store refuses if the record changed meanwhile or its lease is live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, BinaryIO, TypeVar

import click

from semel.cli.answers import encode_value, find_misfit
from semel.cli.options import (
    OpenedStore,
    confirm,
    count,
    duration,
    filter_of,
    filter_options,
    json_option,
    limit_option,
    option,
    store_option,
    yes_option,
)
from semel.cli.outcome import document, print_outcome
from semel.cli.output import print_json
from semel.cli.selection import DIGEST_HELP, find_record, find_records, key_arguments
from semel.codecs import responses
from semel.core.fingerprint import of_function
from semel.core.http import Response
from semel.core.records import Record, Result
from semel.store import Removable, Resolvable, StateFilter

F = TypeVar("F", bound=Callable[..., Any])
DAY_MS = 24 * 3600 * 1000


@click.command()
@store_option
@key_arguments
@option(
    "--answer",
    type=click.File("rb"),
    help="What repeats will get: the body of an HTTP answer, or a function's return value as JSON; - reads stdin.",
)
@option("--status", type=click.IntRange(200, 599), help="The status of that HTTP answer; 200 if it is left out.")
@option("--header", multiple=True, metavar="NAME:VALUE", help="A header of that answer; may be repeated.")
@option("--format", help="What the file is, if it is stored as it is, for code that reads this format.")
@option("--failed", is_flag=True, help="With --format: the answer is a failure.")
@option("--nothing-done", is_flag=True, help="Nothing was done: the key is free, and a repeat runs the work.")
@option("--retention", type=duration, metavar="DURATION", default="24h", help="How long repeats get the answer.")
@yes_option
@json_option
def resolve(
    store: OpenedStore,
    key: str,
    tenant: str | None,
    scope: str | None,
    digest: bool,
    answer: BinaryIO | None,
    status: int | None,
    header: Sequence[str],
    format: str | None,
    failed: bool,
    nothing_done: bool,
    retention: timedelta,
    yes: bool,
    json: bool,
) -> None:
    """End the unknown outcome of one key, after you have found out what really happened.

    Either it took effect: then give the answer that every repeat will get. Or it did not: --nothing-done frees the key.
    If you are wrong with --nothing-done, the work runs a second time. "semel keys resolve-many" does it for many.

    \b
    Examples:
      semel keys resolve order-1 --tenant shop --answer receipt.json --status 201 \\
          --header content-type:application/json
      echo '{"receipt": 7}' | semel keys resolve order-1 --scope shop.charge --answer -
      semel keys resolve 3f2a9c0011223344 --nothing-done
    """
    if (answer is None) is not nothing_done:
        raise click.UsageError("Say what happened: either --answer FILE or --nothing-done.")
    record = find_record(store, key, tenant, scope, digest)
    result = None if answer is None else _encode_answer(record, answer.read(), status, header, format, failed)
    consequence = "a repeat runs the work again" if nothing_done else "repeats get this answer"
    confirm(f"End the unknown outcome of 1 record (attempt {record.attempt}), so that {consequence}?", yes=yes)
    if not resolvable(store).resolve(record, result, retention_ms=round(retention.total_seconds() * 1000)):
        why = explain_unresolved(record, store.now_ms())
        if json:
            print_json(document("resolve", 0, [(record, why)]))
        raise click.ClickException(f"Refused: {why}.")
    if json:
        print_json(document("resolve", 1, []))
        return
    click.echo("Resolved: nothing was done." if nothing_done else "Resolved with the given answer.")


def _encode_answer(
    record: Record, body: bytes, status: int | None, headers: Sequence[str], format: str | None, failed: bool
) -> Result:
    """The answer in the format of the code that uses the key."""
    if failed and format is None:
        raise click.UsageError("--failed is for another --format: of an HTTP answer the status says it.")
    if of_function(record.fingerprint) and format is None:
        if status is not None or headers:
            raise click.UsageError("--status and --header are for HTTP, and this key is a function's: leave them out.")
        try:
            return encode_value(body)
        except ValueError as error:
            raise click.UsageError(f"--answer: {error}") from error
    result = encode_result(body, status or 200, headers, format or responses.FORMAT, failed)
    if reason := find_misfit(record, result):
        raise click.UsageError(f"--format: {reason}")
    return result


def encode_result(body: bytes, status: int, headers: Sequence[str], format: str, failed: bool) -> Result:
    if format != responses.FORMAT:
        try:
            return Result(format, body, ok=not failed)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    pairs: list[tuple[bytes, bytes]] = []
    for each in headers:
        name, colon, value = each.partition(":")
        if not colon or not name.strip() or not each.isascii() or not each.isprintable():
            raise click.UsageError(f"--header {each!r}: write NAME:VALUE")
        pairs.append((name.strip().encode(), value.strip().encode()))
    if not any(name.lower() == b"content-length" for name, _ in pairs):
        pairs.append((b"content-length", str(len(body)).encode()))
    return responses.encode(Response(status, tuple(pairs), body), ok=status < 400)


def resolvable(opened: OpenedStore) -> Resolvable:
    if not isinstance(opened.store, Resolvable):
        raise opened.lacks("resolve unknown outcomes", "Resolvable")
    return opened.store


def removable(opened: OpenedStore) -> Removable:
    if not isinstance(opened.store, Removable):
        raise opened.lacks("remove records", "Removable")
    return opened.store


def explain_unresolved(record: Record, now_ms: int) -> str:
    if not record.in_progress():
        return "the record is finished, its outcome is not unknown"
    if not record.lapsed(now_ms):
        return "its lease is live, the work may be running; wait until it ends or lapses"
    return "the record changed meanwhile; look at it again"


def bulk_options(command: F) -> F:
    """One key, or all that match."""
    given: tuple[Callable[[F], F], ...] = (
        store_option,
        click.argument("key", required=False),
        option("--digest", is_flag=True, help=DIGEST_HELP),
        filter_options,
        limit_option(1000, "Act on at most N records."),
        yes_option,
        json_option,
    )
    for each in reversed(given):
        command = each(command)
    return command


@click.command()
@bulk_options
def release(store: OpenedStore, yes: bool, json: bool, **which: Any) -> None:
    """Free keys whose outcome is unknown, because nothing was done: a repeat runs the work.

    The same as "resolve --nothing-done", for one key or for all unknown outcomes that match. If something was done, it
    will be done twice.

    \b
    Examples:
      semel keys release order-1 --tenant shop
      semel keys release --scope 'POST /reports' --older-than 1h --yes
    """
    act = resolvable(store)
    _change(
        store,
        _choose(store, lambda record: record.in_progress(), "unknown", **which),
        "Free {} whose outcome is unknown, so that repeats run the work?",
        lambda record: act.resolve(record, None, retention_ms=DAY_MS),
        "Released",
        yes=yes,
        json=json,
    )


@click.command()
@bulk_options
def expire(store: OpenedStore, yes: bool, json: bool, **which: Any) -> None:
    """End the retention of finished records now.

    What happens after retention happens at once: a repeat is a first call, or is refused for one more retention where
    the policy says expired="refuse". The record is purged in the ordinary way. Records in progress and unknown outcomes
    are left alone.

    \b
    Examples:
      semel keys expire order-1 --tenant shop
      semel keys expire --tenant test-tenant --yes
    """
    act = removable(store)
    _change(
        store,
        _choose(store, lambda record: not record.in_progress(), None, **which),
        "End the retention of {}, so that their answers are not repeated any more?",
        act.expire,
        "Expired",
        yes=yes,
        json=json,
    )


@click.command()
@bulk_options
def delete(store: OpenedStore, yes: bool, json: bool, **which: Any) -> None:
    """Delete finished records and unknown outcomes at once: a repeat is a first call.

    Unlike "expire" it leaves nothing behind, also where expired keys are refused, and it forgets unknown outcomes, too.
    A record whose lease is live is never deleted.

    \b
    Examples:
      semel keys delete order-1 --tenant shop
      semel keys delete --tenant closed-account --limit 100000 --yes
    """
    act, now_ms = removable(store), store.now_ms()
    _change(
        store,
        _choose(store, lambda record: not record.in_progress() or record.lapsed(now_ms), None, **which),
        "Delete {}, so that repeats run the work again?",
        act.remove,
        "Deleted",
        yes=yes,
        json=json,
    )


def _choose(
    opened: OpenedStore,
    wanted: Callable[[Record], bool],
    only: StateFilter | None,
    *,
    key: str | None,
    digest: bool,
    limit: int,
    state: StateFilter | None,
    tenant: str | None,
    scope: str | None,
    prefix: str,
    older_than: timedelta,
) -> tuple[list[Record], bool]:
    """The records that are meant, and whether there are more than --limit."""
    if key is not None:
        if state or prefix or older_than:
            raise click.UsageError(
                "With a KEY only --tenant and --scope choose: leave --state, --prefix and --older-than out."
            )
        return [find_record(opened, key, tenant, scope, digest)], False
    if digest:
        raise click.UsageError("--digest says what KEY is, and there is no KEY.")
    if not (state or tenant is not None or scope is not None or prefix or older_than):
        raise click.UsageError(
            "Name a KEY, or choose records with --state, --tenant, --scope, --prefix or --older-than."
        )
    if only is not None and state not in (None, only):
        return [], False
    records, more = find_records(opened, filter_of(only or state, tenant, scope, prefix, older_than), wanted, limit)
    if more:
        click.echo(f"There are more than --limit {limit}: the rest stays for the next time.", err=True)
    return records, more


def _change(
    opened: OpenedStore,
    chosen: tuple[Sequence[Record], bool],
    question: str,
    act: Callable[[Record], bool],
    done: str,
    *,
    yes: bool,
    json: bool,
) -> None:
    """Ask for confirmation, act on each record, and print what became of them."""
    records, more = chosen
    action = click.get_current_context().info_name or ""
    if not records:
        if json:
            print_json(document(action, 0, []))
        else:
            click.echo("No record matches.")
        return
    confirm(question.format(count(len(records))), yes=yes)
    left = [record for record in records if not act(record)]
    now_ms = opened.now_ms() if left else 0
    refused = [(record, _explain_refusal(record, now_ms)) for record in left]
    print_outcome(document(action, len(records) - len(left), refused, more=more), done, as_json=json)


def _explain_refusal(record: Record, now_ms: int) -> str:
    if record.in_progress() and not record.lapsed(now_ms):
        return "its lease is live"
    return "it is not in the state for this, or changed meanwhile"
