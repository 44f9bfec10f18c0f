"""What a command that changes records says about each: changed, or refused and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from semel.cli.options import count
from semel.cli.output import digest, print_json
from semel.core.records import Record

Refused = tuple[Record, str]


def document(action: str, changed: int, refused: Sequence[Refused], *, more: bool = False) -> dict[str, Any]:
    """The same members for every command."""
    told = [
        {"digest": digest(record.key.name), "tenant": record.key.tenant, "scope": record.key.scope, "reason": why}
        for record, why in refused
    ]
    return {"action": action, "changed": changed, "refused": told, "more": more}


def print_outcome(told: dict[str, Any], done: str, *, as_json: bool) -> None:
    """Print the outcome, and end with 1 if any record was refused."""
    if as_json:
        print_json(told)
    else:
        click.echo(f"{done} {count(told['changed'])}.")
    refused = told["refused"]
    if refused:
        raise click.ClickException(f"{count(len(refused))} stayed; of the first one: {refused[0]['reason']}.")
