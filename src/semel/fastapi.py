"""FastAPI and Starlette: the middleware in one line, marks on endpoints, and a schema that shows them.

app = FastAPI()
protect(app, store="sqlite:///semel.db", identify=…)
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Unpack

from semel.asgi import IdempotencyMiddleware, idempotency_exempt, idempotent
from semel.asgi.middleware import MiddlewareSettings
from semel.asgi.routes import mark_in
from semel.asgi.types import Scope
from semel.core.policy import Policy
from semel.core.rules import Rule, policy_for
from semel.http.invalid import frames_of, is_in, tell_invalid
from semel.http.marks import Unmarked
from semel.http.openapi import PARAMETER_EXAMPLES, describe
from semel.runtime.arguments import check_options
from semel.store import AsyncStore, TransactionSource

__all__ = ["Rule", "idempotency_exempt", "idempotent", "protect"]
RUNNING = frozenset({"solve_dependencies", "run_endpoint_function"})
"""FastAPI's functions that call the application's code, which may have done something before it raised.

FastAPI itself raises for an invalid request outside of them.
"""


class Application(Protocol):
    """A Starlette or FastAPI application."""

    def add_middleware(self, middleware_class: Any, **options: Any) -> None: ...


def protect(
    app: Application, *, store: AsyncStore | TransactionSource | str, **settings: Unpack[MiddlewareSettings]
) -> None:
    """Protect a FastAPI or Starlette application: add the middleware, and describe the key in the OpenAPI schema.

    ```python
    from fastapi import FastAPI
    from semel.fastapi import protect

    app = FastAPI()
    protect(app, store="sqlite:///semel.db", identify=lambda scope: "shop")

    @app.post("/payments", status_code=201)
    def pay(amount: int) -> dict[str, int]:
        return {"paid": amount}
    ```

    The options are those of `semel.asgi.IdempotencyMiddleware`. `protect` puts it around what is there already: add
    your authentication after this call, so that it comes first. `@idempotent(Policy(…))` and `@idempotency_exempt` on
    an endpoint go before `rules` and `policy`. An unknown option is an error that names the nearest right one.
    """
    check_options(settings, MiddlewareSettings, protect)
    policy, rules = settings.get("policy", Policy()), tuple(settings.get("rules", ()))
    settings["rules"] = rules
    app.add_middleware(IdempotencyMiddleware, store=store, **settings)
    _tell_of_invalid_requests(app)
    make = getattr(app, "openapi", None)
    if make is not None:

        def openapi() -> dict[str, Any]:
            return describe(make(), lambda method, path: protecting(app, method, path, policy, rules))

        app.openapi = openapi  # type: ignore[attr-defined]


def protecting(app: Any, method: str, path: str, policy: Policy, rules: Sequence[Rule]) -> Policy | None:
    """The policy of the endpoint that `app` has for a path of its schema."""
    for example in PARAMETER_EXAMPLES:
        scope: Scope = {"type": "http", "method": method, "path": re.sub(r"\{[^}]+\}", example, path), "headers": []}
        mark = mark_in(scope, app)
        if not isinstance(mark, Unmarked):
            return mark if mark is not None and method in mark.methods else None
    return policy_for(method, path, rules, policy)


def _tell_of_invalid_requests(app: Any) -> None:
    """Tell the operation when FastAPI refuses a request without running the endpoint (`Policy.release_invalid`).

    The application's own handler answers. It may be registered after this call, so it is looked up when the
    application starts.
    """
    exceptions = sys.modules.get("fastapi.exceptions")
    if exceptions is None or not hasattr(app, "exception_handlers"):  # Starlette alone validates nothing
        return
    kind: type[Exception] = exceptions.RequestValidationError
    build = app.build_middleware_stack

    def build_middleware_stack() -> Any:
        handler = app.exception_handlers.get(kind)
        if handler is not None:
            app.exception_handlers[kind] = _telling(handler)
        return build()

    app.build_middleware_stack = build_middleware_stack


def _telling(handler: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    from starlette.concurrency import run_in_threadpool

    async def handle(request: Any, error: Exception) -> Any:
        frames = frames_of(error)
        ran = any(frame.f_code.co_name in RUNNING for frame in frames)
        if is_in(frames[-1], "fastapi") and not ran:
            tell_invalid()
        if inspect.iscoroutinefunction(handler):
            return await handler(request, error)
        return await run_in_threadpool(handler, request, error)

    return handle
