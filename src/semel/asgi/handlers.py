"""The application's own answer for an exception, where its framework makes that outside of our middleware.

Starlette and FastAPI call the handler for 500 or `Exception` outermost, around every added middleware. So our
middleware asks that handler first. When the exception reaches the framework, it gets the same answer without a second
call: a handler that counts or reports does so once.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import Any

from semel.asgi.types import App, Receive, Scope, Send

ANSWERED = "_semel_answered"
"""The attribute of an exception that holds its handler's response, or the exception that the handler raised."""


async def ask_handler(scope: Scope, error: Exception) -> App | None:
    """The response of the application's registered handler for `error`; None without one.

    In debug mode the framework shows its own page instead, which must not be kept.
    """
    outermost = getattr(scope.get("app"), "middleware_stack", None)
    handler = getattr(outermost, "handler", None)
    if outermost is None or handler is None or getattr(outermost, "debug", True):
        return None
    if not isinstance(handler, RememberingHandler):
        handler = outermost.handler = RememberingHandler(handler)
    return await handler.ask(scope, error)


async def answer_for(app: App, scope: Scope, receive: Receive, send: Send, error: Exception) -> None:
    """Answer for what `receive` raised while the middleware read the body, or raise it again.

    A middleware in front of semel may limit the body that way (`HTTPException(413)`). Without semel the application
    reads the body, so its own handlers answer. Starlette and FastAPI call those inside of every added middleware.
    """
    found = scope.get("app", app)
    starlette = sys.modules.get("starlette.applications")
    if starlette is None or not isinstance(found, starlette.Starlette):
        raise error
    from starlette.middleware.exceptions import ExceptionMiddleware

    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    handlers = {kind: handler for kind, handler in found.exception_handlers.items() if kind not in (500, Exception)}
    # It raises what no handler is registered for.
    await ExceptionMiddleware(fail, handlers, debug=found.debug)({**scope, "app": found}, receive, send)


class RememberingHandler:
    """A handler that runs once for an exception, although both the framework and our middleware ask it."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    async def __call__(self, request: Any, error: Exception) -> Any:
        """For the framework."""
        answered = getattr(error, ANSWERED, None)
        if answered is None:
            return await self._call(request, error)
        if isinstance(answered, Exception):
            raise answered
        return answered

    async def ask(self, scope: Scope, error: Exception) -> App | None:
        """For our middleware. A handler that fails has no answer; the framework gets its exception later."""
        from starlette.requests import Request

        answered: Any
        try:
            answered = await self._call(Request(scope), error)
        except Exception as failure:
            answered = failure
        with contextlib.suppress(AttributeError):  # an exception that takes no attribute: its handler is called again
            setattr(error, ANSWERED, answered)
        return None if isinstance(answered, Exception) else answered

    async def _call(self, request: Any, error: Exception) -> Any:
        """Call it as the framework would: a plain function runs in a thread."""
        from starlette.concurrency import run_in_threadpool

        handler = self._handler
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
            return await handler(request, error)
        return await run_in_threadpool(handler, request, error)
