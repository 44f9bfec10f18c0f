"""Idempotency keys for Flask: `Idempotency(app, store="postgresql://…")`, and marks on views.

Flask answers for exceptions itself. In a keyed request, the answer of an error handler of the application is the answer
of the work. Without such a handler the work has *raised*. Flask reports the exception as always (log, signal, error
trackers). The first caller and repeats get its page for status 500, or the one of the application's handler for
that status. It counts as a failure, whatever its status. If the exception is one of `release_exceptions`, the key is
released, and the caller gets that page.

`NotExecuted` releases the key and is answered with 503. `OutcomeUnknown` leaves the outcome unknown and is answered
with 504. A blueprint's handler for every exception would come before ours, and must let these two pass.

Where Flask lets exceptions through (`TESTING`, `DEBUG`, `PROPAGATE_EXCEPTIONS`), they go on from the middleware at
once. Repeats then get the stable problem. A debugger's page is never stored.

Flask authenticates after the middleware has read the key. `identify` takes the environ; where the session names the
caller, open it: `with app.request_context(environ): return current_user.get_id()`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Unpack
from wsgiref.types import StartResponse, WSGIEnvironment

from flask import Flask, got_request_exception, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException
from werkzeug.http import HTTP_STATUS_CODES

from semel.core.http import Headers
from semel.core.rules import Rule
from semel.errors import NotExecuted, OutcomeUnknown, StoreMisconfigured
from semel.http import marks
from semel.http.callers import FLASK_ORDER
from semel.http.gate import Admitted, Refused
from semel.http.marks import SAFE, UNMARKED, Mark, Marked, idempotency_exempt, idempotent, nearest_mark, see
from semel.http.settings import HttpSettings
from semel.http.werkzeug import marked_rules
from semel.runtime.arguments import check_options
from semel.runtime.operation import current_operation
from semel.store import Store, TransactionSource
from semel.wsgi.answers import wire_headers
from semel.wsgi.middleware import IdempotencyMiddleware, Identify
from semel.wsgi.request import path_of

__all__ = ["Idempotency", "Rule", "idempotency_exempt", "idempotent"]


class FlaskSettings(HttpSettings, total=False):
    """The options of `semel.wsgi.IdempotencyMiddleware`, which also has their defaults."""

    identify: Identify | None
    detached_max: int | None


class Idempotency:
    """Protects a Flask application.

    ```python
    from flask import Flask
    from semel.flask import Idempotency

    app = Flask(__name__)
    Idempotency(app, store="sqlite:///semel.db", identify=lambda environ: "shop")

    @app.post("/payments")
    def pay():
        return {"paid": 10}, 201
    ```

    The options are those of `semel.wsgi.IdempotencyMiddleware`. Without `store` the URL in `app.config["SEMEL_STORE"]`
    is opened. In an application factory, make it without `app` and call `init_app`. `@idempotent(Policy(…))` and
    `@idempotency_exempt` on a view go before `rules` and `policy`. An unknown option is an error that names the nearest
    right one.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        store: Store | TransactionSource | str | None = None,
        **settings: Unpack[FlaskSettings],
    ) -> None:
        check_options(settings, FlaskSettings, Idempotency)
        self._store = store
        self._settings = settings
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Put the middleware in front of the application; it is `app.extensions["semel"]` afterwards."""
        if "semel" in app.extensions:
            raise StoreMisconfigured(f"Idempotency is set up for the application {app.name!r} already")
        store: Store | TransactionSource | str | None = (
            app.config.get("SEMEL_STORE") if self._store is None else self._store
        )
        if store is None:
            raise StoreMisconfigured('give Idempotency a store=, or set app.config["SEMEL_STORE"] to its URL')
        middleware = app.extensions["semel"] = FlaskMiddleware(app, store, self._settings)
        app.wsgi_app = middleware  # type: ignore[method-assign]
        app.register_error_handler(NotExecuted, middleware.not_executed)
        app.register_error_handler(OutcomeUnknown, middleware.outcome_unknown)
        got_request_exception.connect(report, app)


class FlaskMiddleware(IdempotencyMiddleware):
    """The middleware that knows the routes: the mark on the view that will run comes before the rules."""

    order = FLASK_ORDER

    def __init__(self, flask: Flask, store: Store | TransactionSource | str, settings: FlaskSettings) -> None:
        super().__init__(flask.wsgi_app, store=store, **settings)
        self._flask = flask

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        see(environ["REQUEST_METHOD"] in SAFE)
        try:
            return super().__call__(environ, start_response)
        finally:
            see(False)  # the thread serves further requests

    def admit(self, environ: WSGIEnvironment, headers: Headers) -> Admitted | Refused | None:
        method: str = environ["REQUEST_METHOD"]
        mark: Mark = UNMARKED
        if marks.used:
            mark = nearest_mark(self._view(environ), method)
            see(mark is not UNMARKED)
        return self.gate.admit(method, path_of(environ), headers, mark)

    def marked(self) -> Iterable[Marked]:
        return marked_rules(self._flask.url_map, self._flask.view_functions)

    def usual_phrase(self, status: int) -> str:
        return HTTP_STATUS_CODES.get(status, "Unknown").upper()

    def lets_exceptions_through(self) -> bool:
        chosen: bool | None = self._flask.config["PROPAGATE_EXCEPTIONS"]
        return self._flask.testing or self._flask.debug if chosen is None else chosen

    def not_executed(self, error: NotExecuted) -> ResponseReturnValue:
        """Flask's handler for work that declares that nothing was done."""
        operation = current_operation()
        if operation is None:
            raise error
        operation.nothing_done()
        return self._declared(error)

    def outcome_unknown(self, error: OutcomeUnknown) -> ResponseReturnValue:
        """Flask's handler for work whose outcome is unknown. Without it, a handler for every exception would answer.

        Flask reports it like any exception that the application does not handle.
        """
        if current_operation() is None:
            raise error
        got_request_exception.send(self._flask, exception=error)
        self._flask.log_exception(sys.exc_info())
        return self._declared(error)

    def _declared(self, error: NotExecuted | OutcomeUnknown) -> ResponseReturnValue:
        declared = self.gate.answers(request.script_root).declared(error)
        assert declared is not None
        response = declared.response
        return self._flask.response_class(response.body, response.status, wire_headers(response.headers))

    def _view(self, environ: WSGIEnvironment) -> object:
        """The view that will run, by the application's own routes; None without one."""
        try:
            asked = self._flask.request_class(environ, populate_request=False, shallow=True)
            adapter = self._flask.create_url_adapter(asked)
            return None if adapter is None else self._flask.view_functions.get(adapter.match()[0])
        except HTTPException:  # not found, not allowed, moved: Flask answers
            return None


def report(sender: Flask, exception: Exception, **more: object) -> None:
    """Flask answers for an exception that it has reported: tell the operation that its work raised."""
    operation = current_operation()
    if operation is not None:
        operation.reported = exception
