"""Sends one request of the command line, and hands its answer over."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from semel.cli.exits import CallExit, CallOutcome, end_call
from semel.cli.intents import Headers, SendOptions
from semel.client.answers import reason_of
from semel.client.journal import Indeterminate, Intent
from semel.client.reports import report_of
from semel.codecs.terminal import json_text, visible
from semel.core.dialects import KeyDialect
from semel.core.journal import CallRequest
from semel.core.retries import AttemptEnd, CallAnswer, read_answer
from semel.errors import InProgress, KeyReused, Misuse, ResultNotKept
from semel.probe.report import redact

AS_IT_IS = {"accept-encoding": "identity"}
"""Asks for the bytes of an answer as the service has them."""
REFUSALS: dict[type[Exception], CallExit] = {
    Indeterminate: CallExit.DOUBT,
    KeyReused: CallExit.OTHER_REQUEST,
    InProgress: CallExit.AGAIN,
}
INTERRUPTED = "Interrupted. The request may have been sent: run the same command again, it goes on with the same key"


def import_httpx() -> tuple[Any, Any]:
    """httpx and the transport for it."""
    try:
        import httpx

        from semel.client.httpx import IdempotentTransport
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f'sending a request needs {error.name}, which is not installed: pip install "semel[cli]"'
        ) from error
    return httpx, IdempotentTransport


def send_request(
    request: CallRequest, dialect: KeyDialect, sent: SendOptions, intent: Intent | None = None
) -> CallOutcome:
    """Send a request until it is answered, or until there is no reason to go on."""
    httpx, idempotent_transport = import_httpx()
    outcome = CallOutcome(None if intent is None else intent.part.id.name)
    transport = idempotent_transport(httpx.HTTPTransport(), retry=sent.retry, dialect=dialect, lease=sent.lease_s)
    with httpx.Client(transport=transport, timeout=sent.timeout_s, headers=AS_IT_IS) as client:
        made = client.build_request(
            request.method,
            request.url,
            headers=list(request.headers),
            content=request.body,
            extensions={} if intent is None else {"semel": intent},
        )
        try:
            response = client.send(made)
        except KeyboardInterrupt:
            end_call(INTERRUPTED, CallExit.STOPPED)
        except ResultNotKept:
            assert intent is not None
            return _without_body(outcome, intent)
        except tuple(REFUSALS) as error:
            return replace(outcome, error=str(error), refusal=REFUSALS[type(error)])
        except httpx.HTTPError as error:
            return _unanswered(outcome, error)
    return _answered(outcome, response, dialect)


def _answered(outcome: CallOutcome, response: Any, dialect: KeyDialect) -> CallOutcome:
    report = report_of(response)
    answer = CallAnswer(response.status_code, tuple(response.headers.multi_items()), response.content)
    end = report.end
    if report.attempts == 0 and read_answer(answer, dialect) is AttemptEnd.NOT_KEPT:
        end = AttemptEnd.NOT_KEPT  # of an answer in the journal, the report says only that it is one
    return replace(
        outcome,
        key=report.key,
        attempts=report.attempts,
        is_replay=report.replayed,
        end=end,
        answer=answer,
        unkept=report.unkept,
    )


def _without_body(outcome: CallOutcome, intent: Intent) -> CallOutcome:
    """The answer that the journal has without its body, which was too large."""
    entry = intent.journal.read(intent.part.id.name)
    assert entry is not None
    assert entry.answer is not None
    answer = CallAnswer(entry.answer.status, entry.answer.headers)
    size = entry.answer.body_size
    return replace(outcome, key=entry.key, is_replay=True, end=AttemptEnd.ANSWERED, answer=answer, lost_size=size)


def _unanswered(outcome: CallOutcome, error: Exception) -> CallOutcome:
    text = f"{type(error).__name__}: {error}"
    try:
        report = report_of(error)
    except Misuse:  # the long body of an answer broke off, which no attempt waits for
        return replace(outcome, attempts=1, end=AttemptEnd.LOST, error=text)
    return replace(outcome, key=report.key, attempts=report.attempts, end=report.end, error=text)


def hand_over(
    outcome: CallOutcome,
    secrets: Headers,
    journal: str | None,
    *,
    json: bool,
    include: bool = False,
    output: Path | None = None,
) -> None:
    """Print the answer, and end the command with the exit status of the call. No header of `secrets` is shown."""
    if json:
        document = outcome.describe(secrets) | {"journal": journal}
        write_output(f"{json_text(document, indent=2)}\n".encode(), output)
    elif (answer := outcome.final_answer) is not None:
        write_output((_head(answer) if include else b"") + answer.body, output)
    if outcome.warning:
        click.echo(f"Warning: {visible(outcome.warning)}", err=True)
    if outcome.status:
        end_call(visible(redact(outcome.message, secrets)), outcome.status)


def write_output(data: bytes, output: Path | None) -> None:
    """To stdout or to a file. If that fails, the next run has the answer from the journal."""
    try:
        if output is not None:
            output.write_bytes(data)
            return
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        if output is None:
            with suppress(OSError, ValueError):  # the rest of its buffer cannot be written at exit, either
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        end_call(
            f"the answer could not be written to {output or 'stdout'}: {error.strerror}. Run the same command again to "
            "get it from the journal",
            CallExit.AGAIN,
        )


def _head(answer: CallAnswer) -> bytes:
    """The head of an answer, as curl prints it."""
    lines = [f"HTTP/1.1 {answer.status} {reason_of(answer.status)}".rstrip()]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
