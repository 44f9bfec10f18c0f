"""FastAPI and Starlette: the middleware in one line, marks on endpoints, and a schema that shows them.

app = FastAPI()
protect(app, store="sqlite:///semel.db", identify=…)
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from semel.asgi import IdempotencyMiddleware, idempotency_exempt, idempotent
from semel.asgi.routes import mark_in
from semel.asgi.types import Scope
from semel.core.policy import Policy
from semel.core.rules import Rule, policy_for
from semel.marks import Unmarked
from semel.openapi import PARAMETER_EXAMPLES, describe

__all__ = ["Rule", "idempotency_exempt", "idempotent", "protect"]


class Application(Protocol):
    """A Starlette or FastAPI application."""

    def add_middleware(self, middleware_class: Any, **options: Any) -> None: ...


def protect(
    app: Application, *, policy: Policy = Policy(), rules: tuple[Rule, ...] | list[Rule] = (), **options: Any
) -> None:
    """Add the middleware to `app` (same options), and show the key and the problems in its OpenAPI schema, if it has
    one.
    """
    app.add_middleware(IdempotencyMiddleware, policy=policy, rules=rules, **options)
    make = getattr(app, "openapi", None)
    if make is not None:

        def openapi() -> dict[str, Any]:
            return describe(make(), lambda method, path: protecting(app, method, path, policy, rules))

        app.openapi = openapi  # type: ignore[attr-defined]


def protecting(app: Any, method: str, path: str, policy: Policy, rules: tuple[Rule, ...] | list[Rule]) -> Policy | None:
    """The policy of the endpoint that `app` has for a path of its schema."""
    for example in PARAMETER_EXAMPLES:
        scope: Scope = {"type": "http", "method": method, "path": re.sub(r"\{[^}]+\}", example, path), "headers": []}
        mark = mark_in(scope, app)
        if not isinstance(mark, Unmarked):
            return mark if mark is not None and method in mark.methods else None
    return policy_for(method, path, rules, policy)
