"""The application's own answer for an exception, where its framework gives that in front of our middleware.

Starlette and FastAPI call the handler for 500 or `Exception` outermost, around every middleware that was added. So our
middleware asks that handler first. The framework calls it, too, when the exception arrives there, and gets what the
handler has answered before: a handler that counts or reports does so once.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

from semel.asgi.types import App, Scope

ANSWERED = "_semel_answered"
"""The attribute of an exception that holds what its handler answered, or the exception that the handler raised."""


async def ask_handler(scope: Scope, error: Exception) -> App | None:
    """The response for `error` of the handler that the application has registered; None where there is none.

    A framework that debugs shows its own page instead, which must not be kept.
    """
    outermost = getattr(scope.get("app"), "middleware_stack", None)
    handler = getattr(outermost, "handler", None)
    if outermost is None or handler is None or getattr(outermost, "debug", True):
        return None
    if not isinstance(handler, RememberingHandler):
        handler = outermost.handler = RememberingHandler(handler)
    return await handler.ask(scope, error)


class RememberingHandler:
    """A handler that answers once for an exception, whoever asks."""

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
        """For our middleware. A handler that fails has no answer; the framework gets to know of it."""
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
        """As the framework would: what is not a coroutine runs in a thread."""
        from starlette.concurrency import run_in_threadpool

        handler = self._handler
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
            return await handler(request, error)
        return await run_in_threadpool(handler, request, error)
