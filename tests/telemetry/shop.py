"""A protected service for the telemetry tests: what it did is in its ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from semel import OutcomeUnknown, Policy, open_async_store
from semel.asgi import IdempotencyMiddleware
from semel.runtime.listener import OnEvent

SECRET_KEY = "order-4711-of-a-customer"


class Shop:
    """One middleware on a SQLite file; `ledger` has a line for each effect."""

    def __init__(self, folder: Path, on_event: OnEvent, **policy: Any) -> None:
        self.ledger: list[str] = []
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """What happens while the handler works."""
        app = Starlette(routes=[Route("/payments/{id}/capture", self._capture, methods=["POST"])])
        self.app = IdempotencyMiddleware(
            app,
            store=open_async_store(f"sqlite:///{folder}/semel.db"),
            identify=lambda scope: "shop",
            on_event=on_event,
            policy=Policy(**policy),
        )

    async def _capture(self, request: Request) -> Response:
        body = await request.json()
        self.ledger.append(body["do"])
        if self.meanwhile is not None:
            await self.meanwhile()
        if body["do"] == "raise":
            raise RuntimeError("no such card")
        if body["do"] == "lose":
            raise OutcomeUnknown("the bank did not answer")
        return JSONResponse({"paid": len(self.ledger)}, status_code=503 if body["do"] == "refuse" else 201)

    async def capture(self, key: str = SECRET_KEY, do: str = "pay", **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            named = {"Idempotency-Key": key, **headers}
            return await client.post("/payments/17/capture", json={"do": do}, headers=named)

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            try:
                await work()
            finally:
                await self.app.store.close()

        asyncio.run(main())
