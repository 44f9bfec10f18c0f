"""A few lines for asking an ASGI application in process."""

from __future__ import annotations

from typing import Any

import httpx


async def post(app: Any, path: str, key: str | None = None, *, body: bytes = b"{}", **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    if key is not None:
        headers["idempotency-key"] = key
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(path, content=body, headers=sent)
