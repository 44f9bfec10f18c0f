"""Quart: `protect(app, store="sqlite:///semel.db", identify=…)`, and marks on views.

Quart answers for exceptions itself. If none of the application's error handlers answers for an exception, the work has
*raised*: Quart reports it as always, and its answer (that of `errorhandler(500)`, if there is one) is stored as a
failure. `NotExecuted` releases the key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack, cast

from quart import Quart, Response, got_request_exception, request
from werkzeug.exceptions import HTTPException

from semel.asgi import IdempotencyMiddleware, idempotency_exempt, idempotent
from semel.asgi.middleware import MiddlewareSettings
from semel.asgi.routes import place_of
from semel.asgi.types import App, Scope
from semel.core.rules import Rule
from semel.errors import NotExecuted
from semel.http.marks import UNMARKED, Mark, Marked, nearest_mark
from semel.http.werkzeug import marked_rules
from semel.runtime.arguments import check_options
from semel.runtime.operation import current_operation
from semel.store import AsyncStore, TransactionSource

__all__ = ["Rule", "idempotency_exempt", "idempotent", "protect"]


def protect(app: Quart, *, store: AsyncStore | TransactionSource | str, **settings: Unpack[MiddlewareSettings]) -> None:
    """Protect a Quart application: put the middleware in front of it.

    ```python
    from quart import Quart
    from semel.quart import protect

    app = Quart(__name__)
    protect(app, store="sqlite:///semel.db", identify=lambda scope: "shop")

    @app.post("/payments")
    async def pay():
        return {"paid": 10}, 201
    ```

    The options are those of `semel.asgi.IdempotencyMiddleware`. `@idempotent(Policy(…))` and `@idempotency_exempt` on a
    view go before `rules` and `policy`. An unknown option is an error that names the nearest right one.
    """
    check_options(settings, MiddlewareSettings, protect)
    middleware = QuartMiddleware(app, store, settings)
    app.asgi_app = cast(Any, middleware)  # type: ignore[method-assign]

    async def not_executed(error: NotExecuted) -> Response:
        operation = current_operation()
        if operation is None:
            raise error
        operation.nothing_done()
        answer = middleware.gate.answers(request.root_path).not_executed(str(error)).response
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
        return Response(answer.body, answer.status, dict(headers))

    async def report(sender: Quart, exception: Exception, **more: object) -> None:
        """Quart answers for an exception that it has reported: tell the operation that its work raised."""
        operation = current_operation()
        if operation is not None:
            operation.reported = exception

    app.register_error_handler(NotExecuted, not_executed)
    got_request_exception.connect(report, app, weak=False)


class QuartMiddleware(IdempotencyMiddleware):
    """The middleware that knows the routes."""

    def __init__(self, app: Quart, store: AsyncStore | TransactionSource | str, settings: MiddlewareSettings) -> None:
        super().__init__(cast(App, app.asgi_app), store=store, **settings)
        self._quart = app

    def mark(self, scope: Scope) -> Mark:
        adapter = self._quart.url_map.bind("")
        try:
            endpoint, _ = adapter.match(place_of(scope)[1], method=scope["method"])
        except HTTPException:  # not found, not allowed, moved: Quart answers
            return UNMARKED
        return nearest_mark(self._quart.view_functions.get(endpoint), scope["method"])

    def marked(self, scope: Scope) -> Iterable[Marked]:
        return marked_rules(self._quart.url_map, self._quart.view_functions)
