"""Applications for `--app`: protected ones of both kinds, and one that is not."""

from typing import Any

from semel import Policy
from semel.asgi import IdempotencyMiddleware, Rule
from semel.wsgi import IdempotencyMiddleware as WsgiMiddleware

RULES = [
    Rule("POST /payments/{id}/capture", policy=Policy(required=True, key_format="uuid")),
    Rule("/webhooks/"),
]


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"not here"})


def plain_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    start_response("404 Not Found", [])
    return [b"not here"]


app = IdempotencyMiddleware(plain, store="memory://", rules=RULES, identify=lambda scope: "x")
wsgi_app = WsgiMiddleware(plain_wsgi, store="memory://", rules=RULES, identify=lambda environ: "x")
hidden = IdempotencyMiddleware(plain, store="memory://", publish=None, identify=lambda scope: "x")
