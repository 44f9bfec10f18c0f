"""Django's ASGI application with a lifespan, so that accepted work is finished when the server stops.

Django does not serve `lifespan`. A server that stops waits for answers, but an operation that was accepted with 202 has
had its answer, and would be cut off. In `asgi.py`:

    from semel.django.asgi import get_asgi_application

    application = get_asgi_application()
"""

from __future__ import annotations

from django.core.asgi import get_asgi_application as django_application

from semel.asgi.types import App, Receive, Scope, Send
from semel.django.front import AsyncFront, async_front


def get_asgi_application() -> App:
    """Like Django's function of that name, but work that has begun ends before the server does."""
    return Lifespan(django_application())


class Lifespan:
    """Serves the lifespan in place of an application that has none. An application that has one awaits `drain`."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return
        if (front := _front()) is not None:
            front.expect_drain()
            front.look_once()
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await drain()
        await send({"type": "lifespan.shutdown.complete"})


async def drain() -> None:
    """Let begun work end, within a bound, and close the store if a URL names it. Call this when the server stops."""
    front = _front()
    if front is not None:
        await front.host.tasks.drain()
        if isinstance(front.config.store, str):
            await front.store.close()


def _front() -> AsyncFront | None:
    """The front for tasks. None where a middleware after ours makes Django run ours in threads."""
    return async_front() if async_front.cache_info().currsize else None
