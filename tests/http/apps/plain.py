"""The actions as a service that knows nothing of keys, for a place behind a gateway. Its failures are its answers."""

import logging
from typing import Any

from apps.bare import bare

from semel import NotExecuted


async def app(scope: Any, receive: Any, send: Any) -> None:
    try:
        await bare(scope, receive, send)
    except NotExecuted:
        await fail(send, 503, b'{"type": "about:problems#not-executed"}')
    except LookupError:
        logging.exception("failed")
        await fail(send, 500, b'{"type": "about:problems#internal-error"}')


async def fail(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
