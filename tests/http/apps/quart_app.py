"""The actions as a Quart application."""

from collections.abc import AsyncIterator

from apps.actions import act, protection
from quart import Quart, Response, request

from semel.quart import protect

app = Quart(__name__)


@app.post("/<action>")
async def endpoint(action: str) -> Response:
    await request.get_data()
    answer = await act(action, request.headers.get("idempotency-key", "-").strip('"'))

    async def stream() -> AsyncIterator[bytes]:
        for chunk in answer.chunks:
            yield chunk

    response = Response(stream() if len(answer.chunks) > 1 else answer.chunks[0], answer.status)
    length = response.headers.get("content-length")
    response.headers.clear()
    for name, value in answer.headers:
        response.headers.add(name, value)
    if length is not None:
        response.headers.add("content-length", length)
    return response


protect(app, **protection())
