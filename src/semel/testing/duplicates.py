"""Duplicate everything: while it is on, all httpx clients of the process send each unsafe request twice."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
CLIENTS = ("httpx", "httpx2")
"""Starlette's test client stands on either of them."""


class Duplicates:
    """`count` says how many requests were sent a second time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        found = [import_module(name) for name in CLIENTS if find_spec(name)]
        if not found:
            raise ImportError("httpx is not installed, so no client's requests can be sent twice")
        for module in found:
            patch.setattr(module.Client, "send", self._twice(module.Client.send))
            patch.setattr(module.AsyncClient, "send", self._atwice(module.AsyncClient.send))

    def _twice(self, send: Any) -> Any:
        def twice(client: Any, request: Any, **options: Any) -> Any:
            if request.method not in SAFE:
                request.read()  # a body that comes in parts could be sent only once
                send(client, request, **options).close()
                self.count += 1
            return send(client, request, **options)

        return twice

    def _atwice(self, send: Any) -> Any:
        async def twice(client: Any, request: Any, **options: Any) -> Any:
            if request.method not in SAFE:
                await request.aread()
                await (await send(client, request, **options)).aclose()
                self.count += 1
            return await send(client, request, **options)

        return twice
