"""`semel openapi`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from semel.cli.options import option
from semel.cli.output import print_json
from semel.cli.policies import PublishedPolicy, policy_options, read_policy
from semel.core.policy import Policy
from semel.core.policy_values import ErrorStyle
from semel.core.rules import Rule, policy_for
from semel.http.openapi import describe


@click.command()
@policy_options
@option(
    "--merge",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Put them into this OpenAPI 3 document (JSON) instead, on every protected operation.",
)
def openapi(url: str | None, app: str | None, rules: Path | None, path: str, merge: Path | None) -> None:
    """Print the key's header and the problems as OpenAPI.

    Without --merge it prints a fragment with components.parameters, components.responses and components.schemas to
    refer to; with it, the whole document. The policy is the default one unless --url, --app or --rules names another.

    \b
    Examples:
      semel openapi
      semel openapi --url http://localhost:8000 --merge openapi.json > protected.json
    """
    found = read_policy(url, app, rules, path)
    if merge is None:
        print_json(_fragment(_policies(found)[1]))
        return
    try:
        document: dict[str, Any] = json.loads(merge.read_text())
    except ValueError as error:
        raise click.ClickException(f"{merge} is not JSON: {error}") from error
    if not isinstance(document.get("paths"), dict):
        raise click.ClickException(f"{merge} is not an OpenAPI 3 document: it has no paths")
    listed, rest = _policies(found)
    print_json(describe(document, lambda method, where: policy_for(method, where, listed, rest)))


def _fragment(policy: Policy) -> dict[str, Any]:
    """Made by the same code that describes a real operation, so that both always say the same."""
    described = describe({"paths": {"/": {"post": {}}}}, lambda *_: policy)
    operation = described["paths"]["/"]["post"]
    return {
        "components": {
            "parameters": {"IdempotencyKey": operation["parameters"][0]},
            "responses": {f"Idempotency{status}": answer for status, answer in operation["responses"].items()},
            "schemas": described["components"]["schemas"],
        }
    }


def _policies(found: PublishedPolicy) -> tuple[list[Rule], Policy]:
    """The parts of the policies that a schema shows, back from the document."""
    document = found.document
    rest = Policy(
        headers=document["headers"],
        key_format=_key_format(document["key"]["format"]),
        errors=_errors(document.get("errors")),
    )
    rules: list[Rule] = []
    for operation in document["operations"]:
        policy = None if operation.get("exempt") else _changed(rest, operation)
        if operation["match"].startswith("everything else"):
            return rules, policy or rest
        rules.append(Rule(operation["match"], policy))
    return rules, rest


def _changed(rest: Policy, operation: dict[str, Any]) -> Policy:
    return Policy(
        required=operation.get("required", False),
        headers=operation.get("headers", rest.headers),
        methods=operation.get("methods", rest.methods),
        errors=_errors(operation.get("errors", rest.errors)),
        key_format=_key_format(operation["key_format"]) if "key_format" in operation else rest.key_format,
    )


def _errors(shown: object) -> ErrorStyle:
    return "stripe" if shown == "stripe" else "problem"


def _key_format(shown: str) -> Any:
    return shown if shown in ("any", "uuid", "ulid", "strict") else re.compile(shown)
