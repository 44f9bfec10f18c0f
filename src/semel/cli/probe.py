"""`semel try`: is this service safe to retry? Against any HTTP API."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from semel.cli.options import Number, option
from semel.codecs.terminal import visible
from semel.probe.effects import make_counter
from semel.probe.judge import Mark, judge
from semel.probe.probes import FirstFailed, ProbeSettings, observe
from semel.probe.report import as_json, as_text, format_url, redact
from semel.probe.wire import BadRequest, ProbeRequest

PARALLEL_MAX = 200


@click.command("try")
@click.argument("method")
@click.argument("url")
@option("-d", "--data", help="The body; @FILE reads it from a file. JSON is sent as application/json.")
@option("-H", "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="A header; may be repeated.")
@option("--other-data", help="Another valid body, for the try with another request. Default: one value is changed.")
@option(
    "--identity",
    metavar="'NAME: VALUE'",
    help="A header of another caller, as 'Authorization: Bearer bob'. Default: made-up credentials, if any are sent.",
)
@option(
    "--effects",
    metavar="URL|COMMAND",
    help="What counts the effects: a URL or a shell command that gives a number. Without it only answers are judged.",
)
@option("--key-header", default="Idempotency-Key", help="The header that carries the key.")
@option(
    "--parallel",
    type=click.IntRange(2, PARALLEL_MAX),
    default=20,
    help="How many requests with one key are sent at once.",
)
@option(
    "--timeout",
    type=Number(0.1, 600),
    default=30.0,
    help="Seconds to wait for one answer.",
)
@option("--json", is_flag=True, help="Print one JSON document instead of the table.")
@option("--yes", is_flag=True, help="Do not ask before sending real requests to another machine.")
def try_(
    method: str,
    url: str,
    data: str | None,
    headers: tuple[str, ...],
    other_data: str | None,
    identity: str | None,
    effects: str | None,
    key_header: str,
    parallel: int,
    timeout: float,
    json: bool,
    yes: bool,
) -> None:
    """Try whether METHOD URL is safe to retry, and say what is wrong.

    Sends the request twice with one key, then many times at once with another, then with the first key and another
    body, with another identity, without a key and with malformed keys. The table says of each what the service did and
    whether that was right: ✔ right, ✘ wrong, ? cannot be told from outside. Works with any HTTP API.

    These are REAL requests, and several of them are meant to take effect: use a test account.

    Exit status: 0 when nothing is wrong, 1 when something is, 2 when the command was not understood.

    \b
    Examples:
      semel try POST http://127.0.0.1:8000/orders -d '{"sku": 1}'
      semel try POST https://api.example.com/payments -d @payment.json \\
          -H 'Authorization: Bearer alice' --identity 'Authorization: Bearer bob' \\
          --effects 'psql -Atc "select count(*) from payments"'
    """
    try:
        given = tuple(_header(each) for each in headers)
        if any(name.lower() == key_header.lower() for name, _ in given):
            raise BadRequest(f"each try brings a key of its own: leave the header {key_header} out")
        request = ProbeRequest(method.upper(), url, given, _body(data), key_header)
        settings = ProbeSettings(
            request,
            other_body=None if other_data is None else _body(other_data),
            identity=None if identity is None else _header(identity),
            parallel=parallel,
            timeout_s=timeout,
            count=make_counter(effects, request, timeout) if effects else None,
            on_progress=_progress if sys.stderr.isatty() and not json else lambda _: None,
        )
    except BadRequest as error:
        raise click.UsageError(str(error)) from None
    if not (yes or request.loopback):
        _ask(settings)
    try:
        verdicts = judge(observe(settings))
    except BadRequest as error:
        raise click.ClickException(str(error)) from None
    except FirstFailed as failed:
        raise click.ClickException(_not_accepted(failed, request)) from None
    shown = as_json if json else as_text
    click.echo(shown(verdicts, request, counted=settings.count is not None))
    if any(verdict.mark is Mark.WRONG for verdict in verdicts):
        sys.exit(1)


def _ask(settings: ProbeSettings) -> None:
    where = format_url(settings.request.url)
    warning = f"This sends up to {settings.requests} real requests to {where}; some are meant to take effect."
    if not sys.stdin.isatty():
        raise click.UsageError(f"{warning} Say --yes if that is meant.")
    click.confirm(f"{warning} Go on?", abort=True, err=True)


def _not_accepted(failed: FirstFailed, request: ProbeRequest) -> str:
    reply = failed.reply
    hint = "Give a request that succeeds: nothing can be said about repeats of one that does not."
    if reply.status in (401, 403):
        hint = "Give credentials with -H 'Authorization: …'."
    elif not reply.status:
        hint = "Is the service running, and is the URL right?"
    return visible(redact(f"the first request was not accepted: {reply}. {hint}", request.headers))


def _progress(what: str) -> None:
    click.echo(f"… {what}", err=True)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isascii() or not text.isprintable():
        raise BadRequest("a header is written 'Name: value', in printable ASCII characters")
    return name.strip(), value.strip()


def _body(data: str | None) -> bytes:
    if data is None:
        return b""
    if not data.startswith("@"):
        return data.encode()
    try:
        return Path(data[1:]).read_bytes()
    except OSError as error:
        raise BadRequest(f"{data}: {error.strerror}") from None
