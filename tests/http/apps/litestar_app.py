"""The actions as a Litestar application."""

from collections.abc import AsyncIterator
from typing import Any

from apps.actions import act, protection
from litestar import Litestar, Request, post
from litestar.logging import LoggingConfig
from litestar.response.base import ASGIResponse
from litestar.response.streaming import ASGIStreamingResponse

from semel.litestar import IdempotencyPlugin


@post("/{action:str}")
async def endpoint(action: str, request: Request[Any, Any, Any]) -> ASGIResponse:
    await request.body()
    answer = await act(action, request.headers.get("idempotency-key", "-").strip('"'))
    headers = [(name.encode(), value.encode()) for name, value in answer.headers]

    async def stream() -> AsyncIterator[bytes]:
        for chunk in answer.chunks:
            yield chunk

    if len(answer.chunks) > 1:
        return ASGIStreamingResponse(iterator=stream(), status_code=answer.status, encoded_headers=headers)
    return ASGIResponse(body=answer.chunks[0], status_code=answer.status, encoded_headers=headers)


app = Litestar(
    [endpoint],
    plugins=[IdempotencyPlugin(**protection())],
    logging_config=LoggingConfig(log_exceptions="always"),
)
