"""The middleware: its settings, checked at start-up, and how it routes a request."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from operator import itemgetter
from typing import Any, Self

from semel.asgi.exchange import caller_of, serve
from semel.asgi.routes import mark_in, marked_in, place_of
from semel.asgi.types import App, Message, Receive, Scope, Send, send_response
from semel.core import http
from semel.core.http import Response
from semel.core.policy import Policy
from semel.core.rules import Rule
from semel.http import marks
from semel.http.answers import DIRECTIVE, without_directives
from semel.http.document import published
from semel.http.gate import Gate, Refused
from semel.http.marks import SAFE, UNMARKED, Mark, Marked, see
from semel.http.monitors import Monitored
from semel.http.quota import DEFAULT_STORAGE, AsyncQuotas, counting
from semel.http.settings import HttpSettings
from semel.runtime.arguments import check_function, check_store
from semel.runtime.drive import adrive
from semel.runtime.host import WAITERS_MAX, AsyncHost
from semel.runtime.listener import OnEvent, ignore, logged
from semel.runtime.readiness import START_S, async_look_at
from semel.store import AsyncStore, TransactionSource
from semel.stores.open import open_async_store

Identify = Callable[[Scope], "str | Awaitable[str | None] | None"]
NAME, LOWER = itemgetter(0), bytes.lower

logger = logging.getLogger("semel")


class MiddlewareSettings(HttpSettings, total=False):
    """The options of `IdempotencyMiddleware` besides the store, for helpers that pass them on. It has the defaults."""

    identify: Identify | None


class IdempotencyMiddleware:
    """Makes retries of an ASGI application's unsafe methods safe.

    ```python
    from semel.asgi import IdempotencyMiddleware

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"paid"})

    app = IdempotencyMiddleware(app, store="sqlite:///semel.db", identify=lambda scope: "shop")
    ```

    The first request with a key runs, and its answer is stored before it is sent. A repeat gets the same status,
    headers and body. Another request under the same key is refused with 422, a repeat while the first one runs with
    409. If the store cannot be reached nothing runs, and the answer is 503.

    - `store` is an async store, a URL, or an `AsyncTransactionStore` for exactly-once.
    - `policy` applies where no rule of `rules` does.
    - `identify` maps a request's scope to the name of its caller, who alone gets the answer. Put the middleware behind
      your authentication, so that the caller is known. Without it, callers are told apart by the authenticated
      user, else by their `Authorization`.
    - `publish` is the path at which callers find what is protected; None publishes nothing.
    - `secret` keys the stored fingerprints and the links of accepted operations: give the same to every process.
    - `on_event` is told what happens: see `semel.telemetry`.
    - `quota_storage` is where `Policy.quota` counts; `waiters_max` is how many repeats may wait in a process.
    """

    def __init__(
        self,
        app: App,
        *,
        store: AsyncStore | TransactionSource | str,
        policy: Policy = Policy(),
        rules: Iterable[Rule] = (),
        identify: Identify | None = None,
        publish: str | None = http.WELL_KNOWN,
        secret: bytes | str | None = None,
        on_event: OnEvent = ignore,
        quota_storage: str = DEFAULT_STORAGE,
        waiters_max: int = WAITERS_MAX,
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
        opened: Any = open_async_store(store) if isinstance(store, str) else store
        if not inspect.iscoroutinefunction(opened.close):
            raise TypeError(
                f"{type(store).__name__} is a sync store; open one for ASGI with semel.open_async_store(url)"
                if not bound
                else f"{type(store).__name__} is for threads; ASGI takes semel.transaction.AsyncTransactionStore"
            )
        # Under exactly-once each request has a store of its own: its transaction.
        self.transactions: TransactionSource | None = opened if bound else None
        self.identify = identify
        quotas = AsyncQuotas(quota_storage)
        if self.gate.has_quota:
            _ = quotas.limiter  # fails at start-up if something is missing
        self.host = AsyncHost(opened, on_event=on_event, others=counting(quotas), waiters_max=waiters_max)
        if identify is None:
            logger.warning(
                self.gate.unidentified(
                    "IdempotencyMiddleware was given no identify=",
                    "Pass identify=, a function from the scope to the account's name.",
                )
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, self._lifespan(send) if scope["type"] == "lifespan" else send)
            return
        method, path = scope["method"], scope["path"]
        if method in SAFE:
            see(True)
            answer = await self._answer_published(scope) if method == "GET" and self.gate.published_at in path else None
            if answer is None:
                await self.app(scope, receive, send)
            else:
                await send_response(send, answer)
            return
        headers, gate = scope["headers"], self.gate
        if not (gate.required or marks.used) and gate.header_set.isdisjoint(map(LOWER, map(NAME, headers))):
            await self.app(scope, receive, _drop_directives(send))  # a shortcut: the gate would let it pass, too
            return
        answers = gate.rootless
        if scope.get("root_path"):
            root, path = place_of(scope)
            answers = gate.answers(root)
        mark: Mark = UNMARKED
        if marks.used:
            mark = self.mark(scope)
            see(mark is not UNMARKED)
        admitted = gate.admit(method, path, headers, mark)
        if admitted is None:
            await self.app(scope, receive, _drop_directives(send))
        elif isinstance(admitted, Refused):
            await send_response(send, gate.refuse(admitted, answers, method, scope["path"], headers))
        else:
            await serve(self, admitted, answers, scope, receive, send)

    def around(self, app: App) -> Self:
        """A copy around another application, on the same host."""
        made = copy(self)
        made.app = app
        return made

    def under(self, gate: Gate, identify: Identify) -> Self:
        """A copy with other rules, on the same host. A request that has begun keeps the rules it began with."""
        made = copy(self)
        made.gate, made.identify = gate, identify
        return made

    def mark(self, scope: Scope) -> Mark:
        """The mark of the endpoint that will run."""
        return mark_in(scope, self.app)

    def marked(self, scope: Scope) -> Iterable[Marked]:
        """Every marked endpoint, for the published policy."""
        return marked_in(scope, self.app)

    @property
    def store(self) -> AsyncStore:
        """The store, as it was given or opened."""
        return self.host.store

    async def close(self) -> None:
        """Let begun work end, then close the store if the middleware opened it."""
        await self.host.tasks.drain()
        if self.owns_store:
            await self.host.store.close()

    async def _answer_published(self, scope: Scope) -> Response | None:
        """The policy document, or how an accepted operation ended; None when the request is the application's."""
        root, path = place_of(scope)
        found = published(self.gate, path, scope["headers"], root=root, marks=lambda: self.marked(scope))
        if not isinstance(found, Monitored):
            return found
        plan = self.gate.monitor(found, await caller_of(scope, self.gate, self.identify), root)
        if self.transactions is None:
            return await adrive(plan, self.host.asker.perform)
        looking = self.transactions.request()
        try:
            return await adrive(plan, self.host.asker_on(looking).perform)
        finally:
            await looking.end()

    async def look_at_store(self) -> None:
        """Log what is wrong with the store when the server starts. The wait for a slow store is bounded."""
        looking = self.host.tasks.spawn(async_look_at(self.host.store))
        await asyncio.wait({looking}, timeout=START_S)

    def _lifespan(self, send: Send) -> Send:
        """Look at the store once the application has started, which may create tables. Close when it has stopped."""

        async def wrapped(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                await self.look_at_store()
            elif message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self.close()
            await send(message)

        return wrapped


def _drop_directives(send: Send) -> Send:
    """Drop the directives from the answer to a request without a key: they have no effect there, and are not sent."""

    def wrapped(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            for name, _ in message.get("headers", ()):
                if name.lower() == DIRECTIVE:
                    message = {**message, "headers": without_directives(message["headers"])}
                    break
        return send(message)

    return wrapped
