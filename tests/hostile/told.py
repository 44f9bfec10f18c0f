"""Applications that answer with the key as the middleware has read it, for ASGI and WSGI servers. Nothing is decided
here: what a request without a key is told is `null`.
"""

import json
from collections.abc import Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from semel import current_operation
from semel.asgi import IdempotencyMiddleware as AsgiMiddleware
from semel.wsgi import IdempotencyMiddleware as WsgiMiddleware


def told() -> bytes:
    operation = current_operation()
    return json.dumps({"key": None if operation is None else operation.key.name}).encode()


async def tell(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": told()})


def tell_wsgi(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("200 OK", [("content-type", "application/json")])
    return [told()]


asgi = AsgiMiddleware(tell, store="memory://", identify=lambda scope: "caller")
wsgi = WsgiMiddleware(tell_wsgi, store="memory://", identify=lambda environ: "caller")
