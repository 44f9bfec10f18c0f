"""`semel call`: one request of a script, under a durable key."""

from __future__ import annotations

import json as json_module
import os
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import click

from semel.cli.dispatch import hand_over, import_httpx, send_request
from semel.cli.exits import CallExit, end_call
from semel.cli.intents import (
    Headers,
    JournalChoice,
    SendOptions,
    duration_up_to,
    journal_options,
    read_name,
    send_options,
)
from semel.cli.options import json_option, option
from semel.cli.output import seconds
from semel.cli.service import ServiceAway, ServiceKeys, ask_service, keys_of
from semel.core.body_keys import put_key, read_body_key
from semel.core.dialects import DIALECTS, DRAFT_07, KeyDialect, check_key
from semel.core.journal import CallRequest
from semel.core.retries import find_header, may_repeat
from semel.errors import NotDiscovered

NEVER_SENT_TWICE = ("GET", "HEAD", "OPTIONS", "TRACE")
"""Methods that change nothing. They need no key, and no journal keeps what they answer."""


def read_data(text: str) -> bytes:
    """The bytes of a body, read once: every attempt sends the same."""
    if not text.startswith("@"):
        return os.fsencode(text)  # the bytes that were typed
    try:
        return sys.stdin.buffer.read() if text == "@-" else Path(text[1:]).read_bytes()
    except OSError as error:
        raise click.BadParameter(f"{text[1:]}: {error.strerror}") from error


@click.command()
@click.argument("method")
@click.argument("url")
@option("--intent", type=read_name, metavar="NAME", help="Which operation this is: the same name in every run.")
@option(
    "-d",
    "--data",
    type=read_data,
    metavar="TEXT",
    help="The body; @FILE reads it from a file, @- from stdin. JSON is sent as application/json, unless -H says "
    "something else.",
)
@option("--json-body", type=read_data, metavar="TEXT", help="The same, and what is not JSON is refused.")
@send_options
@option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    help="How this service is told the key. Default: draft-07, which is the header Idempotency-Key.",
)
@option("--discover", is_flag=True, help="Ask the service for that, in its /.well-known/idempotency.")
@option(
    "--max-age",
    type=duration_up_to("3650d"),
    metavar="DURATION",
    help="How long the service remembers a key, or less: an older intent is not sent again. Default: a little less "
    "than the service says, or its dialect; 23h for draft-07.",
)
@journal_options
@option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write to this file, and not to stdout.",
)
@option("--include", is_flag=True, help="Print the status and the headers before the body.")
@json_option
def call(
    method: str,
    url: str,
    intent: str | None,
    data: bytes | None,
    json_body: bytes | None,
    sent: SendOptions,
    dialect: str | None,
    discover: bool,
    max_age: timedelta | None,
    journal: JournalChoice,
    output: Path | None,
    include: bool,
    json: bool,
) -> None:
    """Send a request that takes effect once, however often you run it.

    The name that --intent gives stands for one operation. Its key is in a journal before the first byte is sent, so a
    command that was killed can simply be run again: it sends the same bytes under the same key. When the service has
    answered for good, the journal has the answer: running the command again prints it, and sends nothing.

    The body of that answer goes to stdout byte for byte; any other answer is told on stderr. The journal keeps the
    method, the URL, the body and a few headers (accept, content-type, content-encoding, content-language, if-match,
    prefer, and that of a key which you give yourself). It never keeps Authorization, Cookie or any other header, so
    each run needs them again.

    \b
    Exit status:
      0    the final answer is a success (below 400)
      1    any other error of this command: run it again, as with 75
      2    called wrongly: nothing was sent
      3    the journal cannot be opened or used: this run has sent nothing
      4    the final answer is a refusal or a failure (400 or more)
      5    it is not known whether it took effect: it is not sent again
           until you have looked at the service
      6    the name belongs to another request: nothing was sent
      7    not finished, and running it again as it is would not help:
           credentials, a redirect, a certificate
      75   not finished: run it again; the key stays the same
      130  stopped by Ctrl-C: run it again, as with 75

    \b
    Examples:
      semel call POST https://api.example.com/payments -d @payment.json --intent pay:order:42 \\
          -H @/etc/shop/api-headers
      semel call POST https://api.example.com/payments --json-body '{"amount": 5}' --intent pay:order:43 --json
      semel call POST https://api.stripe.com/v1/refunds -d charge=ch_1 --intent refund:ch_1 --dialect stripe \\
          -H 'Content-Type: application/x-www-form-urlencoded' -H @stripe-headers
    """
    method = method.upper()
    _check_target(method, url, intent, output)
    if json and include:
        raise click.UsageError("--json has the headers already: leave --include out.")
    body, headers = _read_body(data, json_body, sent.headers)
    service = _find_service(url, dialect, discover, max_age)
    request = _check_request(CallRequest(method, url, headers, body, service.dialect.name), service.dialect)
    httpx, _ = import_httpx()
    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        raise click.BadParameter(str(error), param_hint="URL") from error
    if intent is None:
        hand_over(
            send_request(request, service.dialect, sent), sent.headers, None, json=json, include=include, output=output
        )
        return
    named = journal.open().intent(intent, max_age=service.max_age)
    outcome = send_request(request, service.dialect, sent, named)
    hand_over(outcome, sent.headers, journal.shown, json=json, include=include, output=output)


def _check_target(method: str, url: str, name: str | None, output: Path | None) -> None:
    if not method.isascii() or not method.isalpha():
        raise click.BadParameter(f"{method!r} is no method: write POST, PATCH, PUT, DELETE or GET", param_hint="METHOD")
    if method in NEVER_SENT_TWICE and name is not None:
        raise click.UsageError(f"{method} changes nothing, so no journal keeps it: leave --intent out.")
    if name is None and not may_repeat(method, keyed=False):
        raise click.UsageError(
            f"{method} needs --intent NAME: only a name tells the next run that it is the same operation. Take one "
            "that says which operation it is, as --intent pay:order:42, without a time or a random number."
        )
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isprintable()
    except ValueError as error:
        raise click.BadParameter(f"{error}", param_hint="URL") from error
    if not is_good:
        raise click.BadParameter("write an http:// or https:// URL", param_hint="URL")
    if parts.username is not None or parts.password is not None:
        raise click.BadParameter(
            "a URL with credentials would be kept in the journal: give them with -H 'Authorization: …'",
            param_hint="URL",
        )
    if parts.fragment:
        raise click.BadParameter("what stands after # is not sent: leave it out", param_hint="URL")
    if output is not None and not output.parent.is_dir():
        raise click.BadParameter(f"the folder {output.parent} does not exist", param_hint="--output")


def _read_body(data: bytes | None, json_body: bytes | None, headers: Headers) -> tuple[bytes, Headers]:
    """The body, and the headers with its type."""
    if data is not None and json_body is not None:
        raise click.UsageError("Give only one of --data and --json-body.")
    body = json_body if json_body is not None else data
    is_json = body is not None and _is_json(body)
    if json_body is not None and not is_json:
        raise click.BadParameter("it is not JSON; --data sends anything", param_hint="--json-body")
    has_type = any(name.lower() == "content-type" for name, _ in headers)
    if is_json and not has_type:
        headers = (*headers, ("Content-Type", "application/json"))
    return body or b"", headers


def _is_json(body: bytes) -> bool:
    try:
        json_module.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _find_service(url: str, dialect: str | None, asks: bool, max_age: timedelta | None) -> ServiceKeys:
    """How the service is told the key, and how old an intent may become."""
    if not asks:
        service = keys_of(DRAFT_07 if dialect is None else DIALECTS[dialect])
    elif dialect is not None:
        raise click.UsageError("Give only one of --dialect and --discover.")
    else:
        try:
            service = ask_service(url)
        except NotDiscovered as error:
            raise click.UsageError(f"--discover: {error}. --dialect says it instead") from error
        except ServiceAway as error:
            end_call(f"--discover: {error}. Nothing was sent: run the same command again", CallExit.AGAIN)
    if max_age is None:
        return service
    if max_age > service.retention:
        raise click.BadParameter(
            f"{seconds(max_age)} is too long: by {service.source} the service remembers a key for "
            f"{seconds(service.retention)}",
            param_hint="--max-age",
        )
    return replace(service, max_age=max_age)


def _check_request(request: CallRequest, dialect: KeyDialect) -> CallRequest:
    """Refuse what the journal or the dialect would refuse, before there is anything to send."""
    try:
        request.checked()
        put_key(request, "", dialect)
        if key := find_header(request.headers, dialect.header) or read_body_key(request, dialect):
            check_key(key, dialect)
    except (TypeError, ValueError) as error:
        raise click.UsageError(f"{error}. Nothing was sent.") from error
    return request
