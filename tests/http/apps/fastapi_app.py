"""The actions as a FastAPI application."""

from collections.abc import AsyncIterator
from typing import Annotated

from apps.actions import act, protection
from fastapi import FastAPI, Header, Request
from starlette.responses import Response, StreamingResponse

from semel.asgi import IdempotencyMiddleware

app = FastAPI()
app.add_middleware(IdempotencyMiddleware, **protection())


@app.post("/{action}")
async def endpoint(action: str, request: Request, idempotency_key: Annotated[str, Header()] = "-") -> Response:
    await request.body()
    answer = await act(action, idempotency_key.strip('"'))

    async def stream() -> AsyncIterator[bytes]:
        for chunk in answer.chunks:
            yield chunk

    response = (
        StreamingResponse(stream(), answer.status)
        if len(answer.chunks) > 1
        else Response(answer.chunks[0], answer.status)
    )
    response.raw_headers = [
        *((name.encode(), value.encode()) for name, value in answer.headers),
        *(header for header in response.raw_headers if header[0] == b"content-length"),
    ]
    return response
