"""Litestar: `Litestar(…, plugins=[IdempotencyPlugin(store="sqlite:///semel.db", identify=…)])`.

Handlers are marked with `opt={"semel": Policy(…)}`, or None for an exempt one. Litestar builds a middleware for each
route. The plugin makes one and hands out copies, which share everything but the application behind them. When the
application stops, the plugin lets begun work end, and closes the store if it has opened it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Unpack

from litestar import Response, get
from litestar.config.app import AppConfig
from litestar.exceptions import ClientException, HTTPException, NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.middleware._internal.exceptions import ExceptionHandlerMiddleware  # it has no public name
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import OpenAPI
from litestar.plugins import InitPlugin
from litestar.plugins.base import ReceiveRoutePlugin
from litestar.routes import BaseRoute
from litestar.types import ASGIApp

from semel.asgi import IdempotencyMiddleware
from semel.asgi.body import KEPT, KeptBody
from semel.asgi.middleware import MiddlewareSettings
from semel.asgi.routes import litestar_mark, place_of
from semel.asgi.types import Receive, Scope, Send
from semel.core.policy import Policy
from semel.core.rules import every_policy, policy_for
from semel.errors import NotExecuted
from semel.http.invalid import frames_of, is_in, tell_invalid
from semel.http.marks import SAFE, UNMARKED, Marked, Unmarked, expect, marked
from semel.http.openapi import describe
from semel.runtime.arguments import check_options
from semel.runtime.operation import current_operation
from semel.store import AsyncStore, TransactionSource

__all__ = ["IdempotencyPlugin"]
CALLING = "_call_handler_function"
READING = frozenset({"to_kwargs", "resolve_dependencies", "parse_values_from_connection_kwargs"})
"""Litestar's own functions, which have no public name: one reads the arguments with the others, then calls the handler.

If Litestar renames them, semel cannot tell that a request was invalid: its refusal is stored, which is safe.
"""


class LitestarMiddleware(IdempotencyMiddleware):
    """The middleware that knows the routes. No lifespan reaches it, because it stands behind them."""

    def marked(self, scope: Scope) -> Iterator[Marked]:
        for route in scope["litestar_app"].routes:
            for handler in getattr(route, "route_handlers", ()):
                if handler.resolve_include_in_schema():
                    marks = dict.fromkeys(handler.http_methods, litestar_mark(handler))
                    yield from marked(_path_format(route), marks, marks.__getitem__)


class EarlyBody:
    """Stands in front of the application's own middlewares, which may read the body before ours can."""

    def __init__(self, app: ASGIApp, policies: Sequence[Policy]) -> None:
        self.app = app
        self._policies = policies

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] not in SAFE:
            mark = litestar_mark(scope.get("route_handler"))
            policies = [mark] if isinstance(mark, Policy) else self._policies
            names = {name.lower() for name, _ in scope["headers"]}
            if any(not policy.header_set.isdisjoint(names) for policy in policies):
                kept = KeptBody(receive, max(policy.body_max for policy in policies))
                scope[KEPT] = kept
                receive = kept.receive
        await self.app(scope, receive, send)


class IdempotencyPlugin(InitPlugin, ReceiveRoutePlugin):
    """Protects a Litestar application: `Litestar(plugins=[IdempotencyPlugin(…)])`.

    ```python
    from litestar import Litestar, post
    from semel.litestar import IdempotencyPlugin

    @post("/payments")
    async def pay() -> dict[str, int]:
        return {"paid": 10}

    plugin = IdempotencyPlugin(store="sqlite:///semel.db", identify=lambda scope: "shop")
    app = Litestar([pay], plugins=[plugin])
    ```

    The options are those of `semel.asgi.IdempotencyMiddleware`. Your own middlewares run first, so that `identify`
    finds whom they have authenticated. The OpenAPI schema shows the key and the problems.
    """

    def __init__(self, *, store: AsyncStore | TransactionSource | str, **settings: Unpack[MiddlewareSettings]) -> None:
        check_options(settings, MiddlewareSettings, IdempotencyPlugin)
        self._shared = LitestarMiddleware(_nowhere, store=store, **settings)
        gate = self._shared.gate
        self._policies = every_policy(gate.rules, gate.policy)
        self._routes: dict[str, BaseRoute] = {}
        expect()  # a mark in `opt` needs no decorator that would tell of it

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.middleware.insert(0, self._early_body)
        app_config.middleware.append(self._middleware)
        app_config.exception_handlers = {NotExecuted: self._not_executed, **app_config.exception_handlers}
        app_config.route_handlers = [*app_config.route_handlers, *self._published()]
        app_config.after_exception.append(_report)
        app_config.openapi_config = self._described(app_config.openapi_config)
        app_config.on_startup.append(self._shared.look_at_store)
        app_config.on_shutdown.append(self._shared.close)
        return app_config

    def receive_route(self, route: BaseRoute) -> None:
        """Litestar calls this for each route, and again for a route that got more handlers."""
        self._routes[route.path] = route

    def _described(self, config: OpenAPIConfig | None) -> OpenAPIConfig | None:
        """Show the key and the problems in the OpenAPI schema, if there is one, when Litestar makes it.

        That is at its first request, not at start-up: a schema with an error must not stop an application.
        """
        if config is None:
            return None
        kind = type(config)

        def to_openapi_schema(config: OpenAPIConfig) -> OpenAPI:
            schema = kind.to_openapi_schema(config)
            to_schema = schema.to_schema
            schema.to_schema = lambda: describe(to_schema(), self._policy_of)  # type: ignore[method-assign]
            return schema

        described = copy(config)  # applications may share one, and Litestar's default is shared by all
        # A class and not an attribute: plugins behind ours copy the configuration too, and change their copy.
        described.__class__ = type(kind.__name__, (kind,), {"to_openapi_schema": to_openapi_schema})
        return described

    def _policy_of(self, method: str, path: str) -> Policy | None:
        gate = self._shared.gate
        for route in self._routes.values():
            if _path_format(route) == path:
                for handler in getattr(route, "route_handlers", ()):
                    mark = litestar_mark(handler) if method in handler.http_methods else UNMARKED
                    if not isinstance(mark, Unmarked):
                        return mark if mark is not None and method in mark.methods else None
        return policy_for(method, path, gate.rules, gate.policy)

    def _middleware(self, app: ASGIApp) -> Any:
        """The middleware of one route.

        Litestar answers for exceptions around the handler, and again around all middlewares. The second place is too
        late for exceptions between our middleware and the handler (CSRF, a router's middlewares), so it also answers
        here.
        """
        return self._shared.around(ExceptionHandlerMiddleware(app, debug=None))  # type: ignore[arg-type]

    def _early_body(self, app: ASGIApp) -> Any:
        return EarlyBody(app, self._policies)

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
        """Litestar's handler for work that declares that nothing was done: its key is released."""
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
    if isinstance(error, ClientException) and _is_before_the_handler(error):
        tell_invalid()


def _is_before_the_handler(error: Exception) -> bool:
    """Whether Litestar itself refused the request while it read the handler's arguments."""
    frames = frames_of(error)
    names = [frame.f_code.co_name for frame in frames]
    if CALLING not in names:
        return False
    called = frames[names.index(CALLING) + 1 :]
    reads = not called or called[0].f_code.co_name in READING
    return reads and all(is_in(frame, "litestar") for frame in called)


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of the first middleware, which serves no request: its copies do."""
    raise AssertionError("the copies for the routes serve the requests")


def _path_format(route: Any) -> str:
    """A route's path with `{name}` for parameters, as schemas write it."""
    return re.sub(r":[^}/]*", "", route.path_format)


async def _not_found() -> None:
    """The middleware did not answer, so there is nothing at this path."""
    raise NotFoundException
