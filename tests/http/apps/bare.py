"""The actions as a bare ASGI application."""

from typing import Any

from apps.actions import act, protection

from semel.asgi import IdempotencyMiddleware


async def bare(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body", False):
        pass
    if scope["method"] != "POST":
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body"})
        return
    key = dict(scope["headers"]).get(b"idempotency-key", b"-").decode("latin-1").strip('"')
    answer = await act(scope["path"].strip("/"), key)
    headers = [(name.encode(), value.encode()) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    for chunk in answer.chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body"})


app = IdempotencyMiddleware(bare, **protection())
