"""OpenAPI: shows the key's header and the problems on every protected operation of a schema, merged with what is there.

`describe` works on any OpenAPI 3 document; `semel.fastapi`, Litestar and drf-spectacular hand theirs to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from semel.core.http import PROBLEMS, status_of
from semel.core.keys import FORMATS
from semel.core.policy import Policy
from semel.core.records import NAME_MAX

PARAMETER_EXAMPLES = ("x", "0", "00000000-0000-0000-0000-000000000000")
"""Sample values for a path parameter, to ask a router which endpoint a path of the schema has."""
METHODS = ("put", "post", "delete", "patch")
SCHEMA = "IdempotencyProblem"
MEDIA = "application/problem+json"
STRIPE_SCHEMA = "IdempotencyError"
STRIPE_MEDIA = "application/json"
SHOWN = ("key-missing", "key-malformed", "in-progress", "outcome-unknown", "key-reused")
PolicyOf = Callable[[str, str], "Policy | None"]
"""The policy of an operation, by its method and the path as the schema writes it; None where nothing is protected."""


def describe(document: dict[str, Any], policy_of: PolicyOf) -> dict[str, Any]:
    """Add the key and the problems to `document`, and return it. Doing it twice changes nothing."""
    styles: set[str] = set()
    for path, operations in document.get("paths", {}).items():
        for method in METHODS:
            policy = policy_of(method.upper(), path) if method in operations else None
            if policy is not None:
                styles.add(policy.errors)
                _add_header(operations[method], policy)
                _add_problems(operations[method], policy)
    if styles:
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        if "problem" in styles:
            schemas.setdefault(SCHEMA, _problem_schema())
        if "stripe" in styles:
            schemas.setdefault(STRIPE_SCHEMA, _error_schema())
    return document


def _add_header(operation: dict[str, Any], policy: Policy) -> None:
    name = next(iter(policy.headers))
    parameters: list[dict[str, Any]] = operation.setdefault("parameters", [])
    if any(each.get("in") == "header" and str(each.get("name", "")).lower() == name.lower() for each in parameters):
        return
    parameters.append(
        {
            "name": name,
            "in": "header",
            "required": policy.required,
            "description": "One key for each logical operation, and the same key with every retry of it.",
            "schema": {"type": "string", "minLength": 1, "maxLength": NAME_MAX, **_format(policy)},
        }
    )


def _format(policy: Policy) -> dict[str, str]:
    if isinstance(policy.key_format, re.Pattern):
        return {"pattern": policy.key_format.pattern}
    if policy.key_format == "uuid":
        return {"format": "uuid"}
    return {"pattern": FORMATS["ulid"].pattern} if policy.key_format == "ulid" else {}


def _add_problems(operation: dict[str, Any], policy: Policy) -> None:
    responses: dict[Any, dict[str, Any]] = operation.setdefault("responses", {})
    for kind in SHOWN:
        if kind == "key-missing" and not policy.required:
            continue
        status, title = status_of(kind, policy.errors), PROBLEMS[kind].title
        response = responses.setdefault(status if status in responses else str(status), {"description": ""})
        if title not in response["description"]:
            response["description"] = f"{response['description']}; {title}".removeprefix("; ")
        media, schema = (STRIPE_MEDIA, STRIPE_SCHEMA) if policy.errors == "stripe" else (MEDIA, SCHEMA)
        response.setdefault("content", {}).setdefault(media, {"schema": {"$ref": f"#/components/schemas/{schema}"}})


def _problem_schema() -> dict[str, Any]:
    texts = {name: {"type": "string"} for name in ("title", "detail")}
    links = {name: {"type": "string", "format": "uri-reference"} for name in ("type", "instance")}
    return {
        "type": "object",
        "description": "A problem document (RFC 9457).",
        "required": ["type", "title", "status", "detail", "instance", "retryable"],
        "properties": {**links, **texts, "status": {"type": "integer"}, "retryable": {"type": "boolean"}},
    }


def _error_schema() -> dict[str, Any]:
    texts = {name: {"type": "string"} for name in ("type", "code", "message")}
    error = {"type": "object", "required": ["type", "message"], "properties": texts}
    return {
        "type": "object",
        "description": "An error as Stripe's libraries read it.",
        "required": ["error"],
        "properties": {"error": error},
    }
