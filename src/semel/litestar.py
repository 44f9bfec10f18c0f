"""Litestar: `Litestar(…, plugins=[IdempotencyPlugin(store="sqlite:///semel.db", identify=…)])`.

Handlers are marked with `opt={"semel": Policy(…)}`, or None for an exempt one. Litestar builds a middleware for each
route; the plugin makes one and hands out copies, which share everything but the application behind them. When the
application stops, the plugin lets begun work end and closes the store if that is its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import copy
from typing import Any

from litestar import Litestar, Response, get
from litestar.config.app import AppConfig
from litestar.exceptions import HTTPException, NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.plugins import InitPlugin
from litestar.types import ASGIApp

from semel.asgi import IdempotencyMiddleware
from semel.asgi.routes import litestar_mark, place_of
from semel.asgi.types import Receive, Scope, Send
from semel.core.policy import Policy
from semel.core.rules import policy_for
from semel.errors import NotExecuted
from semel.marks import UNMARKED, Marked, Unmarked, expect, marked
from semel.openapi import describe
from semel.running import current_operation
from semel.store import AsyncStore, TransactionSource

__all__ = ["IdempotencyPlugin"]


class LitestarMiddleware(IdempotencyMiddleware):
    """The middleware that knows the routes. No lifespan reaches it, because it stands behind them."""

    def marked(self, scope: Scope) -> Iterator[Marked]:
        for route in scope["litestar_app"].routes:
            for handler in getattr(route, "route_handlers", ()):
                if handler.resolve_include_in_schema():
                    marks = dict.fromkeys(handler.http_methods, litestar_mark(handler))
                    yield from marked(_path_format(route), marks, marks.__getitem__)


class IdempotencyPlugin(InitPlugin):
    """Takes the arguments of `IdempotencyMiddleware`."""

    def __init__(self, *, store: AsyncStore | TransactionSource | str, **options: Any) -> None:
        self._shared = LitestarMiddleware(_nowhere, store=store, **options)
        expect()  # nobody sees that `opt` is used

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.middleware.append(self._middleware)
        app_config.exception_handlers = {NotExecuted: self._not_executed, **app_config.exception_handlers}
        app_config.route_handlers = [*app_config.route_handlers, *self._published()]
        app_config.after_exception.append(_report)
        app_config.on_startup.append(self._describe)
        app_config.on_shutdown.append(self._shared.close)
        return app_config

    def _describe(self, app: Litestar) -> None:
        """Show the key and the problems in the OpenAPI schema, if there is one."""
        for plugin in app.plugins:
            schema = getattr(plugin, "provide_openapi_schema", None)  # Litestar's own, which has no public name
            if schema is not None and app.openapi_config is not None:
                describe(schema(), lambda method, path: self._policy_of(app, method, path))

    def _policy_of(self, app: Litestar, method: str, path: str) -> Policy | None:
        gate = self._shared.gate
        for route in app.routes:
            if _path_format(route) == path:
                for handler in getattr(route, "route_handlers", ()):
                    mark = litestar_mark(handler) if method in handler.http_methods else UNMARKED
                    if not isinstance(mark, Unmarked):
                        return mark if mark is not None and method in mark.methods else None
        return policy_for(method, path, gate.rules, gate.policy)

    def _middleware(self, app: ASGIApp) -> Any:
        made = copy(self._shared)
        made.app = app  # type: ignore[assignment]
        return made

    def _published(self) -> list[HTTPRouteHandler]:
        """Routes for what the middleware publishes: Litestar asks no middleware about a path that has no route."""
        gate = self._shared.gate
        found = []
        if gate.publish is not None:
            found.append(get(gate.publish, include_in_schema=False, opt={"exclude_from_auth": True})(_not_found))
        if gate.secret is not None:
            found.append(get(f"{gate.monitors.path}{{token:str}}", include_in_schema=False)(_not_found))
        return found

    def _not_executed(self, request: Any, error: Exception) -> Response[bytes]:
        """Litestar answers for exceptions itself; work that declares that nothing was done gives its key back."""
        operation = current_operation()
        if operation is None:
            raise error
        operation.nothing_done()
        answer = self._shared.gate.answers(place_of(request.scope)[0]).not_executed(str(error)).response
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
        return Response(answer.body, status_code=answer.status, headers=headers, media_type=headers["content-type"])


async def _report(error: Exception, scope: Any) -> None:
    """Litestar answers for an exception: tell the operation that its work raised, unless it is an answer itself."""
    operation = current_operation()
    if operation is not None and not isinstance(error, HTTPException):
        operation.reported = error


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of the middleware that only lends its parts."""
    raise AssertionError("the copies for the routes serve the requests")


def _path_format(route: Any) -> str:
    """A route's path with `{name}` for parameters, as schemas write it."""
    return re.sub(r":[^}/]*", "", route.path_format)


async def _not_found() -> None:
    """The middleware did not answer, so there is nothing."""
    raise NotFoundException
