"""The middleware: its settings, checked at start-up, and how it routes a request."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from semel.core import http
from semel.core.http import Headers, Response
from semel.core.policy import Policy
from semel.core.rules import Rule
from semel.http.callers import WSGI_ORDER, explain
from semel.http.document import published
from semel.http.gate import Admitted, Gate, Refused
from semel.http.marks import SAFE, Marked
from semel.http.monitors import Monitored
from semel.http.quota import DEFAULT_STORAGE, Quotas, counting
from semel.runtime.arguments import check_function, check_store
from semel.runtime.drive import drive
from semel.runtime.host import WAITERS_MAX, Host
from semel.runtime.listener import OnEvent, ignore, logged
from semel.runtime.readiness import look_at
from semel.store import Store, TransactionSource
from semel.stores.open import open_store
from semel.wsgi.answers import Whole, start_undirected, status_line, usual_phrase, wire_headers
from semel.wsgi.detachment import DetachedWork
from semel.wsgi.exchange import WsgiExchange
from semel.wsgi.request import encoded, headers_of, path_of, raw_path_of, root_of

Identify = Callable[[WSGIEnvironment], "str | None"]

logger = logging.getLogger("semel")


class IdempotencyMiddleware:
    """Makes retries of a WSGI application's unsafe methods safe.

    ```python
    from semel.wsgi import IdempotencyMiddleware

    def app(environ, start_response):
        start_response("201 Created", [])
        return [b"paid"]

    app = IdempotencyMiddleware(app, store="sqlite:///semel.db", identify=lambda environ: "shop")
    ```

    It promises what `semel.asgi.IdempotencyMiddleware` promises, and takes the same options, with a store for threads
    and an `identify` from the environ.

    A first request with `Prefer: respond-async` may go on in a thread after its caller got 202. At most `detached_max`
    of them run in a process: by default 8 if the server has several threads, else none. If there is no room, the
    caller waits. Repeats always get their 202.
    """

    order = WSGI_ORDER
    """The advice for an `identify` that finds no caller yet."""

    def __init__(
        self,
        app: WSGIApplication,
        *,
        store: Store | TransactionSource | str,
        policy: Policy = Policy(),
        rules: Iterable[Rule] = (),
        identify: Identify | None = None,
        publish: str | None = http.WELL_KNOWN,
        secret: bytes | str | None = None,
        on_event: OnEvent = ignore,
        quota_storage: str = DEFAULT_STORAGE,
        waiters_max: int = WAITERS_MAX,
        detached_max: int | None = None,
    ) -> None:
        self.app = app
        check_store(store)
        check_function(identify, "identify=")
        check_function(on_event, "on_event=")
        bound = getattr(store, "in_transactions", False)
        self.gate = Gate(
            policy, rules, publish=publish, secret=secret, on_event=logged(on_event), in_transactions=bound
        )
        self.owns_store = isinstance(store, str)
        opened: Any = open_store(store) if isinstance(store, str) else store
        if inspect.iscoroutinefunction(opened.close):
            raise TypeError(
                f"{type(store).__name__} is an async store; open one for WSGI with semel.open_store(url)"
                if not bound
                else f"{type(store).__name__} is for tasks; WSGI takes semel.transaction.TransactionStore"
            )
        # Under exactly-once each request has a store of its own: its transaction.
        self.transactions: TransactionSource | None = opened if bound else None
        if inspect.iscoroutinefunction(identify):
            raise TypeError("identify= is a coroutine function, and WSGI has no event loop: give a plain function")
        self.identify = identify
        quotas = Quotas(quota_storage)
        if self.gate.has_quota:
            _ = quotas.limiter  # fails at start-up if something is missing
        self.host = Host(opened, on_event=on_event, others=counting(quotas), waiters_max=waiters_max)
        self._looked = False
        self.detached = DetachedWork(detached_max)
        if identify is None:
            logger.warning(
                self.gate.unidentified(
                    "IdempotencyMiddleware was given no identify=",
                    "Pass identify=, a function from the environ to the account's name.",
                )
            )

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET" and (answer := self._answer_published(environ)) is not None:
            return self.respond(start_response, answer)
        if not self._looked:  # WSGI has no start-up, and semel does not connect while modules are imported
            self._looked = True
            self.host.background.do(lambda: look_at(self.host.store))
        if environ["REQUEST_METHOD"] in SAFE:
            return self.app(environ, start_response)
        headers = headers_of(environ)
        admitted = self.admit(environ, headers)
        if admitted is None:
            return self.app(environ, start_undirected(start_response))
        answers = self.gate.answers(root_of(environ))
        if isinstance(admitted, Refused):
            method, path = environ["REQUEST_METHOD"], raw_path_of(environ)
            return self.respond(start_response, self.gate.refuse(admitted, answers, method, path, headers))
        return WsgiExchange(self, admitted, answers, environ, headers, start_response).run()

    def usual_phrase(self, status: int) -> str:
        """The reason phrase that the application's framework gives to `status`. An answer does not keep this one."""
        return usual_phrase(status)

    def lets_exceptions_through(self) -> bool:
        """Whether the application's framework lets exceptions through to a debugger or a test.

        Then they go on at once, without an answer by semel.
        """
        return False

    def respond(
        self, start_response: StartResponse, response: Response, close: Callable[[], None] | None = None
    ) -> Iterable[bytes]:
        """Give the server a complete answer. It calls `close` when the answer has been sent."""
        start_response(status_line(response, self.usual_phrase), wire_headers(response.headers))
        return Whole(response.body, close)

    def admit(self, environ: WSGIEnvironment, headers: Headers) -> Admitted | Refused | None:
        """Decide what becomes of a request. None lets it pass unprotected."""
        return self.gate.admit(environ["REQUEST_METHOD"], path_of(environ), headers)

    def marked(self) -> Iterable[Marked]:
        """Every marked endpoint, for the published policy. Plain WSGI has no routes."""
        return ()

    def tenant(self, environ: WSGIEnvironment) -> str | None:
        """The caller's name: from `identify`, else the authenticated user, else the holder of the credentials."""
        if self.identify is not None:
            try:
                return self.identify(environ)
            except Exception as error:
                explain(error, environ, self.order)
                raise
        authorization: object = environ.get("HTTP_AUTHORIZATION")
        credentials = None if authorization is None else encoded(authorization)
        return self.gate.caller(environ.get("REMOTE_USER") or None, credentials)

    @property
    def store(self) -> Store:
        """The store, as it was given or opened."""
        return self.host.store

    def close(self) -> None:
        """Let begun work end, then close the store if the middleware opened it.

        WSGI does not tell when a process ends; call this from a server that does.
        """
        self.detached.drain()
        if self.owns_store:
            self.host.store.close()

    def _answer_published(self, environ: WSGIEnvironment) -> Response | None:
        """The policy document, or how an accepted operation ended; None when the request is the application's."""
        path, root = path_of(environ), root_of(environ)
        if not path.startswith(self.gate.published_at):
            return None
        found = published(self.gate, path, headers_of(environ), root=root, marks=self.marked)
        if not isinstance(found, Monitored):
            return found
        plan = self.gate.monitor(found, self.tenant(environ), root)
        if self.transactions is None:
            return drive(plan, self.host.asker.perform)
        looking = self.transactions.request()
        try:
            return drive(plan, self.host.asker_on(looking).perform)
        finally:
            looking.end()
